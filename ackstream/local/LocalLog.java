package ackstream;

import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

import io.delta.storage.HDFSLogStore;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * The logs of Delta tables on a local disk: what is new costs the same, however long the log is.
 *
 * Delta asks for the files from a version on. No directory can be read from a name on, so that a job which follows a table
 * would read the names of a week, of millions of commits, in each batch. But commits have numbers without gaps: those from
 * a version on are found by asking for one after the other, each with its checksum and its checkpoint.
 */
public final class LocalLog extends HDFSLogStore {

    private static final int DIGITS = 20;
    private static final String COMMIT = ".json";
    /** What may be beside a commit, in the order of the names. */
    private static final String[] KINDS = {".checkpoint.parquet", ".crc", COMMIT};

    public LocalLog(Configuration configuration) {
        super(configuration);
    }

    public Iterator listFrom(Path path, Configuration configuration) throws IOException {
        long first = version(path.getName());
        File log = new File(path.getParent().toUri().getPath());
        // else the beginning was deleted, or is asked for
        boolean known = first > 0 && (is(log, first, COMMIT) || is(log, first - 1, COMMIT));
        if (!known) {
            return super.listFrom(path, configuration);
        }
        List found = new ArrayList();
        Path parent = path.getFileSystem(configuration).makeQualified(path.getParent());
        for (long version = first; is(log, version, COMMIT); version++) {
            for (int kind = 0; kind < KINDS.length; kind++) {
                String name = name(version, KINDS[kind]);
                File file = new File(log, name);
                long modified = file.lastModified();
                if (modified > 0 && name.compareTo(path.getName()) >= 0) {
                    found.add(new FileStatus(file.length(), false, 1, 0, modified, new Path(parent, name)));
                }
            }
        }
        return found.iterator();
    }

    private static boolean is(File log, long version, String kind) {
        return new File(log, name(version, kind)).exists();
    }

    private static String name(long version, String kind) {
        String digits = Long.toString(version);
        StringBuilder name = new StringBuilder();
        for (int i = digits.length(); i < DIGITS; i++) {
            name.append('0');
        }
        return name.append(digits).append(kind).toString();
    }

    private static long version(String name) {
        if (name.length() <= DIGITS || name.charAt(DIGITS) != '.') {
            return -1;
        }
        try {
            return Long.parseLong(name.substring(0, DIGITS));
        } catch (NumberFormatException other) {
            return -1;
        }
    }
}
