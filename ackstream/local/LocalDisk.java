package ackstream;

import java.io.File;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.nio.channels.FileChannel;
import java.nio.file.OpenOption;
import java.nio.file.StandardOpenOption;

import com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Local files that survive a power failure: a file is on the disk when it is closed, and a directory when it is made.
 *
 * A hidden file is a draft: its name counts only after the rename, which LocalFiles syncs. Checksums of Delta's log are
 * not synced: Delta ignores one that is missing or cut off.
 */
public class LocalDisk extends NakedLocalFileSystem {

    /** The key that switches it off, in the settings with the prefix spark.hadoop. */
    static final String SYNC = "ackstream.sync";

    private static final String CHECKSUM = ".crc";

    private boolean syncs = true;

    public void initialize(URI uri, Configuration configuration) throws IOException {
        super.initialize(uri, configuration);
        syncs = configuration.getBoolean(SYNC, true);
    }

    /** Waits until the content of a file, or the names in a directory, are on the disk. */
    protected void sync(File file) throws IOException {
        FileChannel channel = FileChannel.open(file.toPath(), new OpenOption[] {StandardOpenOption.READ});
        try {
            channel.force(true);
        } finally {
            channel.close();
        }
    }

    /** Syncs the directory of a file that has its final name. */
    void syncName(File file) throws IOException {
        if (syncs && !isChecksum(file)) {
            sync(file.getParentFile());
        }
    }

    protected OutputStream createOutputStreamWithMode(Path path, boolean append, FsPermission permission)
            throws IOException {
        OutputStream out = super.createOutputStreamWithMode(path, append, permission);
        File file = pathToFile(path);
        return syncs && !isChecksum(file) ? new Synced(out, file) : out;
    }

    public boolean rename(Path from, Path to) throws IOException {
        boolean renamed = super.rename(from, to);
        if (renamed) {
            syncName(pathToFile(to));
        }
        return renamed;
    }

    protected boolean mkOneDirWithMode(Path path, File directory, FsPermission permission) throws IOException {
        boolean made = super.mkOneDirWithMode(path, directory, permission);
        if (made) {
            syncName(directory);
        }
        return made;
    }

    private static boolean isChecksum(File file) {
        return file.getName().indexOf(CHECKSUM) >= 0;
    }

    private final class Synced extends FilterOutputStream {

        private final File file;
        private boolean open = true;

        Synced(OutputStream out, File file) {
            super(out);
            this.file = file;
        }

        public void write(byte[] bytes, int offset, int length) throws IOException {
            out.write(bytes, offset, length);
        }

        public void close() throws IOException {
            super.close();
            if (open) {
                open = false;
                sync(file);
                if (!file.isHidden()) {
                    syncName(file);
                }
            }
        }
    }
}
