//! File operations that change the disk, each of which a test can make fail.

use crate::error::{At, CheckpointError};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

/// An operation that changes the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Make a folder.
    MakeFolder,
    /// Make an empty file.
    MakeFile,
    /// Write to a file.
    Write,
    /// Have a file's contents reach the disk.
    Sync,
    /// Give a file or folder another name.
    Rename,
    /// Have a folder's names reach the disk.
    SyncFolder,
    /// Delete a file.
    Remove,
    /// Delete an empty folder.
    RemoveFolder,
    /// Make a link to a folder.
    Link,
}

type Hook = Arc<dyn Fn(Operation, &Path) -> io::Result<()> + Send + Sync>;

/// The disk. A hook, if there is one, sees every operation before it happens and may refuse it.
#[derive(Clone, Default)]
pub struct Disk {
    hook: Option<Hook>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("hooked", &self.hook.is_some()).finish()
    }
}

/// A file that is being written. Several threads may write to it.
#[derive(Debug)]
pub struct DiskFile {
    disk: Disk,
    file: File,
    path: PathBuf,
}

impl Disk {
    /// A disk on which `hook` decides.
    pub fn with_hook(hook: impl Fn(Operation, &Path) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { hook: Some(Arc::new(hook)) }
    }

    fn ask(&self, operation: Operation, path: &Path) -> io::Result<()> {
        self.hook.as_ref().map_or(Ok(()), |h| h(operation, path))
    }

    /// Makes a folder and those above it; one that exists is fine.
    ///
    /// # Errors
    /// The operating system's.
    pub fn make_folder(&self, path: &Path) -> Result<(), CheckpointError> {
        self.ask(Operation::MakeFolder, path)
            .and_then(|()| fs::create_dir_all(path))
            .at("create the folder", path)
    }

    /// Makes a file, empty even if it existed.
    ///
    /// # Errors
    /// The operating system's.
    pub fn make_file(&self, path: &Path) -> Result<DiskFile, CheckpointError> {
        let file =
            self.ask(Operation::MakeFile, path).and_then(|()| File::create(path)).at("create", path)?;
        Ok(DiskFile { disk: self.clone(), file, path: path.into() })
    }

    /// Replaces `path` by a file with these contents: whole, or as it was.
    ///
    /// # Errors
    /// The operating system's.
    pub fn replace(&self, path: &Path, contents: &[u8]) -> Result<(), CheckpointError> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let partial = path.with_file_name(name);
        let file = self.make_file(&partial)?;
        file.write_at(contents, 0)?;
        file.finish()?;
        self.rename(&partial, path)
    }

    /// Makes `path` a link to `target`, which is in the same folder: what it was before, or that. File systems without links
    /// are left as they are.
    ///
    /// # Errors
    /// The operating system's.
    pub fn link(&self, path: &Path, target: &str) -> Result<(), CheckpointError> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let partial = path.with_file_name(name);
        self.remove_file(&partial)?;
        let made =
            self.ask(Operation::Link, path).and_then(|()| std::os::unix::fs::symlink(target, &partial));
        match made {
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::PERM | Errno::OPNOTSUPP)) => Ok(()),
            made => {
                made.at("make the link", path)?;
                self.rename(&partial, path)
            }
        }
    }

    /// Gives a file or folder another name, and has both names reach the disk.
    ///
    /// # Errors
    /// The operating system's.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<(), CheckpointError> {
        self.ask(Operation::Rename, to).and_then(|()| fs::rename(from, to)).at("rename into place", to)?;
        self.sync_folder(to.parent().unwrap_or(Path::new(".")))
    }

    /// Gives two folders each other's names, at once.
    ///
    /// # Errors
    /// The operating system's: some file systems cannot.
    pub fn exchange(&self, a: &Path, b: &Path) -> Result<(), CheckpointError> {
        let exchanged = self.ask(Operation::Rename, b).and_then(|()| exchange(a, b));
        exchanged.at("exchange with another", b)?;
        for path in [a, b] {
            self.sync_folder(path.parent().unwrap_or(Path::new(".")))?;
        }
        Ok(())
    }

    /// Has a folder's names reach the disk.
    ///
    /// # Errors
    /// The operating system's.
    pub fn sync_folder(&self, path: &Path) -> Result<(), CheckpointError> {
        // An empty relative parent is the current folder.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        self.ask(Operation::SyncFolder, path)
            .and_then(|()| File::open(path)?.sync_all())
            .at("sync the folder", path)
    }

    /// Deletes a file; one that is not there is fine.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove_file(&self, path: &Path) -> Result<(), CheckpointError> {
        let removed = self.ask(Operation::Remove, path).and_then(|()| fs::remove_file(path));
        missing_is_fine(removed).at("delete", path)
    }

    /// Deletes a folder and the files in it; one that is not there is fine.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove_folder(&self, path: &Path) -> Result<(), CheckpointError> {
        let entries = match fs::read_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.at("read the folder", path)?,
        };
        for entry in entries {
            self.remove_file(&entry.at("read the folder", path)?.path())?;
        }
        let removed = self.ask(Operation::RemoveFolder, path).and_then(|()| fs::remove_dir(path));
        missing_is_fine(removed).at("delete the folder", path)
    }
}

#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn missing_is_fine(r: io::Result<()>) -> io::Result<()> {
    match r {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        r => r,
    }
}

impl DiskFile {
    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes bytes from position `at` on.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), CheckpointError> {
        self.disk
            .ask(Operation::Write, &self.path)
            .and_then(|()| self.file.write_all_at(bytes, at))
            .at("write to", &self.path)
    }

    /// Has the contents reach the disk.
    ///
    /// # Errors
    /// The operating system's.
    pub fn finish(self) -> Result<(), CheckpointError> {
        self.disk
            .ask(Operation::Sync, &self.path)
            .and_then(|()| self.file.sync_all())
            .at("flush to the disk", &self.path)
    }
}
