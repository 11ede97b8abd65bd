//! Archive format of an initramfs: cpio "newc". Format: Linux,
//! Documentation/driver-api/early-userspace/buffer-format.rst.

use std::io::{self, Write};

/// First bytes of an entry, and bytes before its name.
const MAGIC: &str = "070701";
const HEADER: usize = 110;
/// Name of the last entry.
const TRAILER: &str = "TRAILER!!!";

/// File type bits of the mode field.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// Writer of one archive.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    inode: u32,
}

impl<W: Write> Writer<W> {
    /// Returns a writer of an archive to `out`.
    pub fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) -> io::Result<()> {
        let too_large = || io::Error::new(io::ErrorKind::InvalidInput, "over 4 GiB");
        let size = u32::try_from(data.len()).map_err(|_| too_large())?;
        let name_size = u32::try_from(name.len() + 1).map_err(|_| too_large())?;
        self.inode += 1;
        // magic, inode, mode, uid, gid, links, mtime, size, device, special device, name size,
        // check
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        let mut header = String::with_capacity(HEADER + name.len() + 1);
        header.push_str(MAGIC);
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(name);
        header.push('\0');
        self.out.write_all(header.as_bytes())?;
        self.pad(header.len())?;
        self.out.write_all(data)?;
        self.pad(data.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }

    /// Adds a directory. Its parents must have been added before.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn folder(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[])
    }

    /// Adds a file.
    ///
    /// # Errors
    /// Errors of the output, or a file of 4 GiB or more.
    pub fn file(&mut self, name: &str, executable: bool, data: &[u8]) -> io::Result<()> {
        self.entry(name, REGULAR | if executable { 0o755 } else { 0o644 }, (0, 0), data)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, LINK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn character_device(&mut self, name: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(name, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// Completes the archive and returns the output.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry(TRAILER, 0, (0, 0), &[])?;
        Ok(self.out)
    }
}

/// An entry of an archive.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Path from the root, without "/".
    pub name: &'a str,
    /// File type and permissions.
    pub mode: u32,
    /// Contents of a file, target of a link.
    pub data: &'a [u8],
}

/// Returns the entries of an archive, up to its end or its first malformed entry.
pub fn entries(archive: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let mut rest = archive;
    std::iter::from_fn(move || {
        let (entry, after) = first_entry(rest)?;
        rest = after;
        Some(entry).filter(|entry| entry.name != TRAILER)
    })
    .fuse()
}

fn first_entry(archive: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let (header, _) = archive.split_at_checked(HEADER)?;
    let fields = header.strip_prefix(MAGIC.as_bytes())?;
    let field = |index: usize| -> Option<u32> {
        let digits = std::str::from_utf8(fields.get(8 * index..)?.get(..8)?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    };
    let (mode, size, name_size) = (field(1)?, field(6)? as usize, field(11)? as usize);
    let name = archive.get(HEADER..HEADER.checked_add(name_size)?)?;
    let name = std::str::from_utf8(name).ok()?.strip_suffix('\0')?;
    let (data, _) = archive.get((HEADER + name_size).next_multiple_of(4)..)?.split_at_checked(size)?;
    let after = archive.get((HEADER + name_size).next_multiple_of(4) + size.next_multiple_of(4)..);
    Some((Entry { name, mode, data }, after.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_for_every_padding() {
        for length in 0..9u8 {
            let data: Vec<u8> = (0..length).collect();
            let name = "n".repeat(usize::from(length) + 1);
            let mut writer = Writer::new(Vec::new());
            writer.folder("bin").expect("memory");
            writer.file(&name, true, &data).expect("memory");
            writer.link("lib", "usr/lib").expect("memory");
            let archive = writer.finish().expect("memory");
            let entry = |name, mode, data| Entry { name, mode, data };
            let expected = [
                entry("bin", 0o040_755, &[]),
                entry(&name, 0o100_755, &data),
                entry("lib", 0o120_777, b"usr/lib"),
            ];
            assert_eq!(entries(&archive).collect::<Vec<_>>(), expected);
            // Damaged and truncated archives have an end.
            for at in 0..archive.len() {
                let mut damaged = archive.clone();
                damaged[at] = b'f';
                assert!(entries(&damaged).count() <= 4);
                assert!(entries(&archive[..at]).count() <= 3);
            }
        }
    }
}
