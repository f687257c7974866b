package ackstream;

import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;

import com.globalmentor.apache.hadoop.fs.BareLocalFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Local files for all others, with a listing of a Delta table's log that has no gaps and costs little.
 *
 * A directory is read piece by piece. Of two commits that are made meanwhile the listing may have the later one alone,
 * which Delta takes for a damaged log. And Hadoop asks the system three times about each file of the log, of which Delta
 * lists all to use the last few.
 */
public class LocalTables extends BareLocalFileSystem {

    private static final String LOG = "_delta_log";
    private static final String COMMIT = ".json";
    private static final int DIGITS = 20;
    private static final int MOST = 1 << 24;

    public LocalTables() {
        this(new LocalDisk());
    }

    /** Writes no checksums: a power failure could leave one that does not belong to its file. */
    protected LocalTables(LocalDisk disk) {
        super(disk);
        setWriteChecksum(false);
    }

    public FileStatus[] listStatus(Path directory) throws IOException {
        File place = pathToFile(directory);
        String[] names = directory.getName().equals(LOG) ? place.list() : null;
        if (names == null) {
            return super.listStatus(directory);
        }
        Path parent = makeQualified(directory);
        long blockSize = getDefaultBlockSize(directory);
        List found = new ArrayList();
        List whole = whole(place, names);
        for (int i = 0; i < whole.size(); i++) {
            String name = (String) whole.get(i);
            Path path = new Path(parent, new Path(null, null, name));
            found.add(new Entry(new File(place, name), path, blockSize));
        }
        return (FileStatus[]) found.toArray(new FileStatus[0]);
    }

    /** Completes the names of commits: one that is missing before another one is there by now, or was deleted. */
    private static List whole(File place, String[] names) {
        BitSet there = new BitSet();
        for (int i = 0; i < names.length; i++) {
            long version = version(names[i]);
            if (version >= 0) {
                there.set((int) version);
            }
        }
        List found = new ArrayList(names.length);
        int first = there.nextSetBit(0);
        int missing = there.length() - 1;
        while ((missing = there.previousClearBit(missing)) > first) {
            String name = String.format("%0" + DIGITS + "d", new Object[] {Integer.valueOf(missing)}) + COMMIT;
            if (!new File(place, name).exists()) {
                // what is before a commit that was deleted is about to be
                first = missing;
                break;
            }
            found.add(name);
            missing--;
        }
        for (int i = 0; i < names.length; i++) {
            long version = version(names[i]);
            if (version >= first || (version < 0 && !(names[i].startsWith(".") && names[i].endsWith(".crc")))) {
                found.add(names[i]);
            }
        }
        return found;
    }

    /** The version of a commit, by the name of its file; -1 for others, and beyond 16 million. */
    private static long version(String name) {
        if (name.length() != DIGITS + COMMIT.length() || !name.endsWith(COMMIT)) {
            return -1;
        }
        long version = 0;
        for (int i = 0; i < DIGITS; i++) {
            char digit = name.charAt(i);
            if (digit < '0' || digit > '9' || version > MOST) {
                return -1;
            }
            version = 10 * version + (digit - '0');
        }
        return version < MOST ? version : -1;
    }

    /** A file of which the system is asked only if somebody wants to know more than its name. */
    private static final class Entry extends FileStatus {

        private transient File file;
        private FileStatus status;

        Entry(File file, Path path, long blockSize) {
            super(0, false, 1, blockSize, 0, path);
            this.file = file;
        }

        private FileStatus status() {
            if (status == null) {
                boolean directory = file.isDirectory();
                long length = directory ? 0 : file.length();
                status = new FileStatus(length, directory, 1, getBlockSize(), file.lastModified(), getPath());
            }
            return status;
        }

        public long getLen() {
            return status().getLen();
        }

        public boolean isFile() {
            return !status().isDirectory();
        }

        public boolean isDirectory() {
            return status().isDirectory();
        }

        public boolean isSymlink() {
            return false;
        }

        public long getModificationTime() {
            return status().getModificationTime();
        }

        public FsPermission getPermission() {
            return status().getPermission();
        }

        private Object writeReplace() {
            return status();
        }
    }
}
