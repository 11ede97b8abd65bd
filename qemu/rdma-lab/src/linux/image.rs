//! Kernel and initramfs of the Linux guest, made from Debian packages and cached.

use super::cpio;
use super::files::{self, MERGED, files_below};
use super::overlay::{self, Settings};
use super::recipe::Recipe;
use crate::cache;
use crate::debian::{self, Packages};
use crate::error::{Error, IoContext, Result};
use object::{Object, ObjectSection};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A bootable guest.
#[derive(Debug, Clone)]
pub struct Image {
    /// Unpacked kernel: an ELF that boots by PVH.
    pub kernel: PathBuf,
    /// Initramfs without the first process, which `overlay` adds at each start.
    pub initramfs: PathBuf,
    /// Kernel version, as in "6.1.0-50-amd64".
    pub version: String,
}

impl Image {
    /// Returns the first file of the initramfs whose path from the root, without "/", `wanted` accepts.
    ///
    /// # Errors
    /// The initramfs cannot be read, or has no such file.
    pub fn file(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>> {
        let archive = fs::read(&self.initramfs).context("cannot read", &self.initramfs)?;
        let found = cpio::entries(&archive).find(|entry| wanted(entry.name));
        found
            .map(|entry| entry.data.to_vec())
            .ok_or_else(|| Error::Format(format!("no such file in {}", self.initramfs.display())))
    }

    /// Writes the initramfs with the first process, helpers and programs of `settings` to `into`.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn write_initramfs(&self, settings: &Settings, into: &Path) -> Result<()> {
        overlay::write(&self.initramfs, settings, into)
    }
}

/// Returns the guest of `recipe`, from the cache or newly made.
///
/// # Errors
/// [`Error::Missing`]: Debian packages cannot be unpacked.
pub fn image(recipe: &Recipe) -> Result<Image> {
    let folder = cache::entry(&recipe.name(), |path| make(recipe, path))?;
    let version_file = folder.join("version");
    let version = fs::read_to_string(&version_file).context("cannot read", &version_file)?;
    Ok(Image { kernel: folder.join("vmlinux"), initramfs: folder.join("initramfs.cpio"), version })
}

/// Remedy if a Linux guest cannot be made.
const REMEDY: &str = "tests against Linux guests need Debian or Ubuntu on x86-64, the network and mmdebstrap (which root gets by itself)";

fn make(recipe: &Recipe, into: &Path) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Error::Missing { what: "this machine is not x86-64".into(), remedy: REMEDY.into() });
    }
    fs::create_dir(into).context("cannot create", into)?;
    let tree = into.join("tree");
    let (suites, names) = (recipe.kernel().suites(), recipe.packages());
    let packages = Packages { suites, release: suites.last().copied(), names: &names };
    debian::unpack(&tree, &packages, REMEDY)?;
    eprintln!("setup: making the initramfs of {}", recipe.name());
    merge_usr(&tree)?;
    let version = kernel_version(&tree)?;
    keep_modules(&tree, &version, &recipe.modules())?;
    let mut depmod = debian::command_in(&tree, "sbin/depmod")?;
    let status = depmod.arg("-b").arg(&tree).arg(&version).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(Error::Program(format!("depmod failed ({status})"))),
        Err(error) => return Err(Error::Program(format!("cannot start depmod: {error}"))),
    }
    // Later packages store the kernel with the modules.
    let places = [format!("boot/vmlinuz-{version}"), format!("lib/modules/{version}/vmlinuz")];
    let kernel = places.map(|place| tree.join(place)).into_iter().find(|place| place.is_file());
    let kernel = kernel.ok_or_else(|| Error::Format(format!("no kernel {version} in {}", tree.display())))?;
    unpack_kernel(&tree, &kernel, &into.join("vmlinux"))?;
    files::write_initramfs(&tree, recipe, &into.join("initramfs.cpio"))?;
    let version_file = into.join("version");
    fs::write(&version_file, version).context("cannot write", &version_file)?;
    fs::remove_dir_all(&tree).context("cannot remove", &tree)
}

fn kernel_version(tree: &Path) -> Result<String> {
    let folder = tree.join("lib/modules");
    fs::read_dir(&folder)
        .context("cannot read", &folder)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .max()
        .ok_or_else(|| Error::Format(format!("no kernel in {}", folder.display())))
}

/// Creates the links of a release that has everything below `usr`.
fn merge_usr(tree: &Path) -> Result<()> {
    for folder in MERGED {
        let (link, target) = (tree.join(folder), Path::new("usr").join(folder));
        if link.symlink_metadata().is_err() && tree.join(&target).is_dir() {
            std::os::unix::fs::symlink(&target, &link).context("cannot create", &link)?;
        }
    }
    Ok(())
}

/// Magic bytes of compressed streams, and the program of the tree that unpacks each.
const PACKERS: [(&[u8], &str); 2] = [(b"\xfd7zXZ\0", "usr/bin/xz"), (b"\x28\xb5\x2f\xfd", "usr/bin/zstd")];

/// Unpacks the file `packed`, which is a single compressed stream, into `into`.
fn unpack_stream(tree: &Path, packed: &Path, into: &Path) -> Result<()> {
    let data = fs::read(packed).context("cannot read", packed)?;
    let Some((_, program)) = PACKERS.iter().find(|(magic, _)| data.starts_with(magic)) else {
        return Err(Error::Format(format!("{} is packed in an unknown way", packed.display())));
    };
    let output = File::create(into).context("cannot create", into)?;
    let status = debian::command_in(tree, program)?.arg("-dc").arg(packed).stdout(output).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Program(format!("{program} failed ({status})"))),
        Err(error) => Err(Error::Program(format!("cannot start {program}: {error}"))),
    }
}

/// Unpacks the ELF of a bzImage. Under an emulated CPU the kernel would take longer to unpack
/// itself than to boot. Fields: `setup_sects` and `payload_offset` in Linux,
/// Documentation/x86/boot.rst.
fn unpack_kernel(tree: &Path, packed: &Path, into: &Path) -> Result<()> {
    let bad = || Error::Format(format!("{} is not a bzImage", packed.display()));
    let image = fs::read(packed).context("cannot read", packed)?;
    let word = |at: usize| -> Result<usize> {
        let bytes = image.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).ok_or_else(bad)?;
        usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| bad())
    };
    let setup_sectors = usize::from(*image.get(0x1f1).ok_or_else(bad)?);
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    let payload = image.get(start..).and_then(|rest| rest.get(..word(0x24c).ok()?)).ok_or_else(bad)?;
    // The last four bytes contain the unpacked size and are not part of the stream.
    let stream = payload.len().checked_sub(4).and_then(|length| payload.get(..length)).ok_or_else(bad)?;
    let packed_payload = into.with_extension("packed");
    fs::write(&packed_payload, stream).context("cannot write", &packed_payload)?;
    unpack_stream(tree, &packed_payload, into)?;
    fs::remove_file(&packed_payload).context("cannot remove", &packed_payload)
}

/// Returns a module's name in the kernel's spelling.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".xz").unwrap_or(name).strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

/// Returns the names of the kernel's built-in modules.
fn built_in(folder: &Path) -> Result<BTreeSet<String>> {
    let list = folder.join("modules.builtin");
    let text = fs::read_to_string(&list).context("cannot read", &list)?;
    Ok(text.lines().filter_map(|line| module_name(Path::new(line))).collect())
}

/// Returns the unpacked file of a module. An emulated CPU loads it fastest.
fn plain_module(tree: &Path, path: &Path) -> Result<PathBuf> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return Ok(path.to_path_buf());
    }
    let plain = path.with_extension("");
    unpack_stream(tree, path, &plain)?;
    fs::remove_file(path).context("cannot remove", path)?;
    Ok(plain)
}

/// Returns the names in a module's `depends=` and `softdep=` records.
fn module_needs(path: &Path) -> Result<Vec<String>> {
    let data = fs::read(path).context("cannot read", path)?;
    let bad = || Error::Format(format!("{} is not a kernel module", path.display()));
    let file = object::File::parse(&*data).map_err(|_| bad())?;
    let section = file.section_by_name(".modinfo").ok_or_else(bad)?;
    let records = section.data().map_err(|_| bad())?;
    let mut needs = Vec::new();
    for record in records.split(|&byte| byte == 0) {
        let record = String::from_utf8_lossy(record);
        if let Some(names) = record.strip_prefix("depends=") {
            needs.extend(names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")));
        } else if let Some(names) = record.strip_prefix("softdep=") {
            let names = names.split_whitespace().filter(|name| !name.ends_with(':'));
            needs.extend(names.map(|name| name.replace('-', "_")));
        }
    }
    Ok(needs)
}

/// Removes every module that is neither wanted nor a dependency of a wanted one.
fn keep_modules(tree: &Path, version: &str, wanted: &[&str]) -> Result<()> {
    let folder = tree.join("lib/modules").join(version);
    let all: BTreeMap<String, PathBuf> =
        files_below(&folder)?.into_iter().filter_map(|path| Some((module_name(&path)?, path))).collect();
    let built_in = built_in(&folder)?;
    let there = |name: &str| all.contains_key(name) || built_in.contains(name);
    if let Some(absent) = wanted.iter().find(|name| !there(name)) {
        return Err(Error::Usage(format!("the kernel {version} has no module {absent}")));
    }
    let mut keep = BTreeSet::new();
    let mut open: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
    while let Some(name) = open.pop() {
        // A soft dependency may be built in or absent.
        if let Some(path) = all.get(&name)
            && keep.insert(name)
        {
            open.extend(module_needs(&plain_module(tree, path)?)?);
        }
    }
    for (name, path) in &all {
        if !keep.contains(name) {
            fs::remove_file(path).context("cannot remove", path)?;
        }
    }
    Ok(())
}
