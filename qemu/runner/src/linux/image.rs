//! The Linux guest's kernel and initramfs, made from Debian packages and kept in the cache.

use super::cpio::Writer;
use super::recipe::Recipe;
use crate::cache;
use crate::debian::{self, Packages};
use crate::error::{Error, IoContext, Result};
use object::{Object, ObjectSection};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// A guest that can be booted.
#[derive(Debug, Clone)]
pub struct Image {
    /// The kernel, unpacked: an ELF that boots by PVH.
    pub kernel: PathBuf,
    /// The initramfs without its first program, which comes with each start (`overlay`).
    pub initramfs: PathBuf,
    /// The kernel's version, as in "6.1.0-50-amd64".
    pub version: String,
}

/// The guest of `recipe`, from the cache or made now.
///
/// # Errors
/// [`Error::Missing`] where Debian packages cannot be unpacked.
pub fn image(recipe: &Recipe<'_>) -> Result<Image> {
    let folder = cache::entry(recipe.name, |path| make(recipe, path))?;
    let version_file = folder.join("version");
    let version = fs::read_to_string(&version_file).context("cannot read", &version_file)?;
    Ok(Image { kernel: folder.join("vmlinux"), initramfs: folder.join("initramfs.cpio"), version })
}

/// What to do where a Linux guest cannot be made.
const REMEDY: &str = "tests against Linux guests need Debian on x86-64, the network and mmdebstrap (which root gets by itself)";

fn make(recipe: &Recipe<'_>, into: &Path) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Error::Missing { what: "this machine is not x86-64".into(), remedy: REMEDY.into() });
    }
    fs::create_dir(into).context("cannot create", into)?;
    let tree = into.join("tree");
    let release = recipe.suites.last().copied();
    let packages = Packages { suites: recipe.suites, release, names: recipe.packages };
    debian::unpack(&tree, &packages, REMEDY)?;
    eprintln!("setup: making the initramfs of {}", recipe.name);
    merge_usr(&tree)?;
    let version = kernel_version(&tree)?;
    keep_modules(&tree, &version, recipe.modules)?;
    let mut depmod = debian::command_in(&tree, "sbin/depmod")?;
    let status = depmod.arg("-b").arg(&tree).arg(&version).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(Error::Program(format!("depmod failed ({status})"))),
        Err(error) => return Err(Error::Program(format!("cannot start depmod: {error}"))),
    }
    // Later packages have it beside the modules.
    let places = [format!("boot/vmlinuz-{version}"), format!("lib/modules/{version}/vmlinuz")];
    let kernel = places.map(|place| tree.join(place)).into_iter().find(|place| place.is_file());
    let kernel = kernel.ok_or_else(|| Error::Format(format!("no kernel {version} in {}", tree.display())))?;
    unpack_kernel(&tree, &kernel, &into.join("vmlinux"))?;
    write_initramfs(&tree, recipe.folders, &into.join("initramfs.cpio"))?;
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

/// The top folders that are links into `usr`, where a system was installed and not only unpacked.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Makes those links where a release has everything below `usr`.
fn merge_usr(tree: &Path) -> Result<()> {
    for folder in MERGED {
        let (link, target) = (tree.join(folder), Path::new("usr").join(folder));
        if link.symlink_metadata().is_err() && tree.join(&target).is_dir() {
            std::os::unix::fs::symlink(&target, &link).context("cannot create", &link)?;
        }
    }
    Ok(())
}

/// What begins a compressed stream, and the program of the tree that unpacks it.
const PACKERS: [(&[u8], &str); 2] = [(b"\xfd7zXZ\0", "usr/bin/xz"), (b"\x28\xb5\x2f\xfd", "usr/bin/zstd")];

/// Unpacks `packed` (a file of one compressed stream) into `into`.
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

/// Unpacks the ELF within a bzImage: under an emulated CPU the kernel would take longer to unpack itself than to
/// boot. Where the payload lies: Linux, Documentation/x86/boot.rst, `setup_sects`, `payload_offset`.
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
    // The last four bytes are the unpacked size, which is no part of the stream.
    let stream = payload.len().checked_sub(4).and_then(|length| payload.get(..length)).ok_or_else(bad)?;
    let packed_payload = into.with_extension("packed");
    fs::write(&packed_payload, stream).context("cannot write", &packed_payload)?;
    unpack_stream(tree, &packed_payload, into)?;
    fs::remove_file(&packed_payload).context("cannot remove", &packed_payload)
}

/// All files below `folder`, links included, folders left out.
pub(super) fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).context("cannot read", &folder)?.flatten() {
            let path = entry.path();
            if path.symlink_metadata().is_ok_and(|data| data.is_dir()) {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A module's name as the kernel spells it.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".ko").or_else(|| name.strip_suffix(".ko.xz"))?;
    Some(name.replace('-', "_"))
}

/// The names of the modules that the kernel has built in.
fn built_in(folder: &Path) -> Result<BTreeSet<String>> {
    let list = folder.join("modules.builtin");
    let text = fs::read_to_string(&list).context("cannot read", &list)?;
    Ok(text.lines().filter_map(|line| module_name(Path::new(line))).collect())
}

/// The module's file unpacked, as an emulated CPU loads it fastest.
fn plain_module(tree: &Path, path: &Path) -> Result<PathBuf> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return Ok(path.to_path_buf());
    }
    let plain = path.with_extension("");
    unpack_stream(tree, path, &plain)?;
    fs::remove_file(path).context("cannot remove", path)?;
    Ok(plain)
}

/// The names in a module's `depends=` and `softdep=` records.
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

/// Removes every module that neither is wanted nor needed by one that is.
fn keep_modules(tree: &Path, version: &str, wanted: &[&str]) -> Result<()> {
    let folder = tree.join("lib/modules").join(version);
    let all: BTreeMap<String, PathBuf> =
        files_below(&folder)?.into_iter().filter_map(|path| Some((module_name(&path)?, path))).collect();
    let built_in = built_in(&folder)?;
    let there = |name: &str| all.contains_key(name) || built_in.contains(name);
    if let Some(absent) = wanted.iter().find(|name| !there(name)) {
        return Err(Error::Format(format!("the kernel {version} has no module {absent}")));
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

/// Folders whose programs and settings a guest may use.
const PROGRAM_FOLDERS: [&str; 4] = ["bin", "sbin", "usr/bin", "usr/sbin"];
/// Programs that came along with dependencies and that no guest runs.
const UNUSED: [&str; 14] = [
    "perl",
    "cpan",
    "dpkg",
    "udevadm",
    "systemd",
    "tar",
    "xz",
    "zstd",
    "pzstd",
    "raw_ethernet",
    "user",
    "group",
    "cpio",
    "openssl",
];
/// Plug-ins that programs open by name, and settings.
const EXTRA: [&str; 6] = [
    "etc/libibverbs.d",
    "usr/lib/x86_64-linux-gnu/libibverbs",
    "usr/lib/x86_64-linux-gnu/rsocket",
    "etc/rdma",
    "etc/infiniband-diags",
    "etc/iproute2",
];
/// Shared libraries that programs open by name.
const OPENED_BY_NAME: [&str; 2] = ["libnss_files.so.2", "libgcc_s.so.1"];

/// The shared libraries that an ELF file names; none for other files.
fn libraries_needed(path: &Path) -> Vec<String> {
    let Ok(data) = fs::read(path) else { return Vec::new() };
    let Ok(object::File::Elf64(file)) = object::File::parse(&*data) else { return Vec::new() };
    needed_names(&file).unwrap_or_default()
}

fn needed_names(file: &object::read::elf::ElfFile64<'_>) -> Option<Vec<String>> {
    use object::read::elf::Dyn;
    let endian = file.endian();
    let sections = file.elf_section_table();
    let (entries, link) = sections.dynamic(endian, file.data()).ok()??;
    let strings = sections.strings(endian, file.data(), link).ok()?;
    let needed = entries.iter().filter(|entry| entry.tag32(endian) == Some(object::elf::DT_NEEDED));
    let names = needed.filter_map(|entry| entry.string(endian, strings).ok());
    Some(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

/// The folders of the tree that `pattern` stands for.
fn folders_like(tree: &Path, pattern: &str) -> Result<Vec<PathBuf>> {
    let folder = tree.join(pattern);
    let Some((before, parent)) = pattern.strip_suffix('*').map(Path::new).and_then(|before| {
        Some((before.file_name()?.to_string_lossy().into_owned(), tree.join(before.parent()?)))
    }) else {
        return Ok(vec![folder]);
    };
    let entries = fs::read_dir(&parent).context("cannot read", &parent)?.flatten();
    let found = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&before));
    Ok(found.map(|entry| entry.path()).collect())
}

/// The files of the tree that the guest gets, `whole` folders among them, relative to the tree's root.
fn choose_files(tree: &Path, whole: &[&str]) -> Result<BTreeSet<PathBuf>> {
    let mut chosen = BTreeSet::new();
    for pattern in whole {
        for folder in folders_like(tree, pattern)? {
            chosen.extend(files_below(&folder)?);
        }
    }
    let folders = PROGRAM_FOLDERS.iter().chain(&EXTRA).copied().chain(["lib/modules"]);
    for folder in folders {
        let folder = tree.join(folder);
        if folder.is_dir() {
            chosen.extend(files_below(&folder)?.into_iter().filter(|file| {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                !UNUSED.iter().any(|unused| name.starts_with(unused))
            }));
        }
    }
    let mut libraries: BTreeMap<String, PathBuf> = BTreeMap::new();
    for folder in ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "lib64"] {
        let folder = tree.join(folder);
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            libraries.insert(entry.file_name().to_string_lossy().into_owned(), entry.path());
        }
    }
    let mut open: Vec<PathBuf> = chosen.iter().cloned().collect();
    open.extend(OPENED_BY_NAME.iter().filter_map(|name| libraries.get(*name).cloned()));
    open.extend(libraries.get("ld-linux-x86-64.so.2").cloned());
    while let Some(path) = open.pop() {
        let mut more = Vec::new();
        if let Ok(target) = fs::read_link(&path) {
            // Links in a package lead within its folder or from the root.
            let target = match target.strip_prefix("/") {
                Ok(absolute) => tree.join(absolute),
                Err(_) => without_parents(&path.parent().unwrap_or(tree).join(target)),
            };
            more.push(target);
        } else {
            more.extend(libraries_needed(&path).iter().filter_map(|name| libraries.get(name).cloned()));
        }
        chosen.insert(path);
        open.extend(more.into_iter().filter(|path| path.is_file() && !chosen.contains(path)));
    }
    chosen
        .into_iter()
        .filter(|path| path.symlink_metadata().is_ok())
        .map(|path| {
            path.strip_prefix(tree)
                .map(Path::to_path_buf)
                .map_err(|_| Error::Format(format!("{} is outside the tree", path.display())))
        })
        .collect()
}

/// The same path with each "folder/.." taken out.
fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}

/// The names that the tree's busybox answers to.
fn busybox_applets(tree: &Path) -> Result<Vec<String>> {
    // Statically linked, so it needs no loader.
    let output = Command::new(tree.join("bin/busybox")).arg("--list").output();
    let output = output.map_err(|error| Error::Program(format!("cannot start busybox: {error}")))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn write_initramfs(tree: &Path, folders: &[&str], archive: &Path) -> Result<()> {
    let file = File::create(archive).context("cannot create", archive)?;
    // Not compressed: QEMU hands it over faster than an emulated CPU unpacks it.
    let written = archive_tree(tree, folders, BufWriter::new(file))?.flush();
    written.context("cannot write", archive)
}

/// Where a file of the tree goes in a guest, where the top folders are links.
fn in_guest(file: &Path) -> PathBuf {
    if MERGED.iter().any(|folder| file.starts_with(folder)) {
        Path::new("usr").join(file)
    } else {
        file.to_path_buf()
    }
}

fn archive_tree<W: Write>(tree: &Path, whole: &[&str], out: W) -> Result<W> {
    let mut writer = Writer::new(out);
    let mut folders: BTreeSet<PathBuf> =
        ["proc", "sys", "dev", "run", "tmp", "root", "etc"].into_iter().map(PathBuf::from).collect();
    folders.extend(MERGED.map(|folder| Path::new("usr").join(folder)));
    // By their places in the guest; the same file may be reached by two paths in the tree.
    let files: BTreeMap<PathBuf, PathBuf> =
        choose_files(tree, whole)?.into_iter().map(|file| (in_guest(&file), tree.join(file))).collect();
    for file in files.keys() {
        folders.extend(file.ancestors().skip(1).filter(|part| !part.as_os_str().is_empty()).map(Into::into));
    }
    folders.insert("usr".into());
    // Sorted, so parents come before what is in them.
    for folder in &folders {
        writer.folder(&folder.to_string_lossy()).context("cannot archive", folder)?;
    }
    for folder in MERGED {
        writer.link(folder, &format!("usr/{folder}")).context("cannot archive", tree)?;
    }
    for (file, path) in &files {
        let name = file.to_string_lossy();
        if let Ok(target) = fs::read_link(path) {
            writer.link(&name, &target.to_string_lossy()).context("cannot archive", path)?;
        } else {
            let data = fs::read(path).context("cannot read", path)?;
            let executable = path
                .metadata()
                .is_ok_and(|data| std::os::unix::fs::PermissionsExt::mode(&data.permissions()) & 0o111 != 0);
            writer.file(&name, executable, &data).context("cannot archive", path)?;
        }
    }
    // Programs that no package brought come from busybox.
    for applet in busybox_applets(tree)? {
        if !["usr/bin", "usr/sbin"].iter().any(|folder| files.contains_key(&Path::new(folder).join(&applet)))
        {
            writer.link(&format!("usr/bin/{applet}"), "/usr/bin/busybox").context("cannot archive", tree)?;
        }
    }
    writer.character_device("dev/console", 5, 1).context("cannot archive", tree)?;
    writer.file("etc/passwd", false, b"root:x:0:0:root:/root:/bin/sh\n").context("cannot archive", tree)?;
    writer.file("etc/group", false, b"root:x:0:\n").context("cannot archive", tree)?;
    writer.finish().context("cannot archive", tree)
}
