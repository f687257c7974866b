package ackstream.tests;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;

import ackstream.LocalDisk;
import ackstream.LocalFiles;
import ackstream.LocalTables;
import org.apache.hadoop.conf.Configuration;

/** The product's local files, which record each sync with all that a directory holds then: see power.py. */
public final class RecordedDisk extends LocalDisk {

    private static final List MOMENTS = new ArrayList();
    private static File root;

    /** Records the syncs in a directory from now on. */
    public static synchronized void begin(String directory) {
        root = new File(directory);
        MOMENTS.clear();
    }

    /** Returns the moments, each as lines: the inode that is synced; then path, inode and content of each file. */
    public static synchronized List moments() {
        return new ArrayList(MOMENTS);
    }

    protected void sync(File file) throws IOException {
        record(file);
        super.sync(file);
    }

    private static synchronized void record(File file) throws IOException {
        if (root != null && (file.equals(root) || file.getPath().startsWith(root.getPath() + "/"))) {
            StringBuffer moment = new StringBuffer();
            moment.append(inode(file));
            describe(moment, root);
            MOMENTS.add(moment.toString());
        }
    }

    private static void describe(StringBuffer moment, File file) throws IOException {
        try {
            File[] inside = file.listFiles();
            String content = inside == null ? Base64.getEncoder().encodeToString(Files.readAllBytes(file.toPath())) : "-";
            String path = file.getPath().substring(root.getPath().length());
            moment.append("\n" + path + "\t" + inode(file) + "\t" + content);
            for (int i = 0; inside != null && i < inside.length; i++) {
                describe(moment, inside[i]);
            }
        } catch (NoSuchFileException removed) {
            // another thread has removed its draft
        }
    }

    private static Object inode(File file) throws IOException {
        return Files.getAttribute(file.toPath(), "unix:ino", new LinkOption[0]);
    }

    /** Instead of LocalFiles. */
    public static class Names extends LocalFiles {

        public Names(URI uri, Configuration configuration) throws IOException, URISyntaxException {
            super(uri, configuration, new RecordedDisk());
        }
    }

    /** Instead of LocalTables. */
    public static final class Tables extends LocalTables {

        public Tables() {
            super(new RecordedDisk());
        }
    }

    /** On a disk without hard links. */
    public static final class Unlinked extends Names {

        public Unlinked(URI uri, Configuration configuration) throws IOException, URISyntaxException {
            super(uri, configuration);
        }

        protected void link(java.nio.file.Path target, java.nio.file.Path source) throws IOException {
            throw new FileSystemException(target.toString(), null, "Operation not permitted");
        }
    }
}
