package ackstream;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.StandardCopyOption;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * Local files for those who ask Hadoop for a FileContext: the log of a Delta table, the logs and states of a checkpoint.
 *
 * Hadoop's own class starts a process for each permission that it sets and each link that it may find, several for a
 * file; and between its look whether a name is taken and its rename, another process can take the name, so that one of
 * two commits is lost. Here a new name is a hard link, which the operating system makes only where nothing has the name;
 * on a disk without hard links that fails. A new name is on the disk when the rename returns.
 *
 * Compiled by `python -m tests.harness.local_files`.
 */
public class LocalFiles extends DelegateToFileSystem {

    private final LocalDisk disk;

    public LocalFiles(URI uri, Configuration configuration) throws IOException, URISyntaxException {
        this(uri, configuration, new LocalDisk());
    }

    protected LocalFiles(URI uri, Configuration configuration, LocalDisk disk) throws IOException, URISyntaxException {
        super(uri, disk, configuration, "file", false);
        this.disk = disk;
    }

    /** Leaves it to the operating system. */
    public boolean isValidName(String name) {
        return true;
    }

    /** Looks through symbolic links: only what removes them would have to tell them from files. */
    public FileStatus getFileLinkStatus(Path path) throws IOException {
        return getFileStatus(path);
    }

    public void renameInternal(Path from, Path to, boolean overwrite) throws IOException {
        java.nio.file.Path source = local(from);
        java.nio.file.Path target = local(to);
        if (!Files.isRegularFile(source)) {
            super.renameInternal(from, to, overwrite);
            return;
        }
        if (overwrite) {
            // a checksum that something else wrote with the former content
            Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
            Files.move(source, target, new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
        } else {
            try {
                link(target, source);
            } catch (java.nio.file.FileAlreadyExistsException taken) {
                throw new FileAlreadyExistsException("The file " + target + " exists.");
            } catch (NoSuchFileException missing) {
                throw new FileNotFoundException(missing.getMessage());
            }
            Files.delete(source);
        }
        disk.syncName(target.toFile());
    }

    /** Gives a file a second name, unless something has that name. */
    protected void link(java.nio.file.Path target, java.nio.file.Path source) throws IOException {
        Files.createLink(target, source);
    }

    private static java.nio.file.Path local(Path path) {
        return new java.io.File(path.toUri().getPath()).toPath();
    }
}
