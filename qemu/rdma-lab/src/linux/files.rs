//! Selects the files of an unpacked package tree for a guest, and writes their archive.

use super::cpio::Writer;
use super::recipe::Recipe;
use crate::error::{Error, IoContext, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Top-level directories that are links into `usr` on an installed system, but not in an unpacked
/// tree.
pub(super) const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Returns all files below `folder`, including links, without directories.
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

/// Directories with programs.
const PROGRAM_FOLDERS: [&str; 4] = ["bin", "sbin", "usr/bin", "usr/sbin"];
/// Name prefixes of programs that dependencies bring and no guest runs. Programs of named packages
/// are kept.
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
/// Directories of other package files: settings, plug-ins, data.
const DATA_FOLDERS: [&str; 5] = ["boot", "etc", "lib", "usr", "opt"];
/// Parts of these directories that are left out unless named. They are large, and programs run
/// without them.
const LEFT_OUT: [&str; 30] = [
    "boot",
    "etc/init.d",
    "etc/perl",
    "etc/systemd",
    "usr/games",
    "usr/include",
    "usr/lib/debug",
    "usr/lib/klibc",
    "usr/lib/systemd",
    "usr/lib/udev",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/x86_64-linux-gnu/perl",
    "usr/lib/x86_64-linux-gnu/perl-base",
    "usr/lib/x86_64-linux-gnu/systemd",
    "usr/share/applications",
    "usr/share/bash-completion",
    "usr/share/bug",
    "usr/share/common-licenses",
    "usr/share/doc",
    "usr/share/gcc",
    "usr/share/icons",
    "usr/share/info",
    "usr/share/initramfs-tools",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/perl",
    "usr/share/perl5",
    "usr/share/zoneinfo",
    "usr/src",
];
/// Name parts of files for GPUs. Guests have no GPU, and the files need hundreds of megabytes of
/// libraries.
const FOR_GPUS: [&str; 2] = ["_rocm.", "_cuda."];
/// Directories of shared libraries. A guest gets the libraries that its other files need.
const LIBRARY_FOLDERS: [&str; 3] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "lib64"];
/// Shared libraries that programs open by name.
const OPENED_BY_NAME: [&str; 2] = ["libnss_files.so.2", "libgcc_s.so.1"];

/// Returns the shared libraries that an ELF file names; empty for all other files.
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

/// Returns whether the guest gets a package file even if no other file needs it. `file` is the path
/// in the guest.
fn wanted(recipe: &Recipe, file: &Path) -> bool {
    if recipe.files().any(|named| file.starts_with(named)) {
        return true;
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let folder = file.parent().unwrap_or(Path::new(""));
    if ["usr/bin", "usr/sbin"].iter().any(|programs| file.starts_with(programs)) {
        let begins = |unused: &&str| name.starts_with(*unused);
        let named = |unused: &str| recipe.added_packages().any(|package| package.starts_with(unused));
        return UNUSED.iter().filter(|unused| begins(unused)).all(|unused| named(unused));
    }
    !LEFT_OUT.iter().any(|left_out| file.starts_with(left_out))
        && !["usr/lib/x86_64-linux-gnu", "usr/lib64"].iter().any(|libraries| folder == Path::new(libraries))
        && !FOR_GPUS.iter().any(|part| name.contains(part))
}

/// Returns the files of the tree that the guest gets, relative to the tree's root.
fn choose_files(tree: &Path, recipe: &Recipe) -> Result<BTreeSet<PathBuf>> {
    let mut chosen = BTreeSet::new();
    for folder in PROGRAM_FOLDERS.iter().chain(&DATA_FOLDERS) {
        let folder = tree.join(folder);
        if folder.is_dir() {
            let is_wanted =
                |file: &PathBuf| file.strip_prefix(tree).is_ok_and(|file| wanted(recipe, &in_guest(file)));
            chosen.extend(files_below(&folder)?.into_iter().filter(is_wanted));
        }
    }
    for named in recipe.files() {
        let is_named = |file: &Path| in_guest(file).starts_with(named);
        if !chosen.iter().any(|file| file.strip_prefix(tree).is_ok_and(is_named)) {
            return Err(Error::Usage(format!("the guest's packages have no file /{named}")));
        }
    }
    let mut libraries: BTreeMap<String, PathBuf> = BTreeMap::new();
    for folder in LIBRARY_FOLDERS {
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
            // Relative links of a package stay in its directory; absolute links start at the tree's
            // root.
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

/// Returns the path without "folder/.." parts.
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

/// Returns the applet names of the tree's busybox.
fn busybox_applets(tree: &Path) -> Result<Vec<String>> {
    // Statically linked, so it needs no loader.
    let output = Command::new(tree.join("bin/busybox")).arg("--list").output();
    let output = output.map_err(|error| Error::Program(format!("cannot start busybox: {error}")))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Writes the initramfs of `recipe`, whose packages and modules are in `tree`.
pub(super) fn write_initramfs(tree: &Path, recipe: &Recipe, archive: &Path) -> Result<()> {
    let file = File::create(archive).context("cannot create", archive)?;
    // Not compressed: QEMU hands it over faster than an emulated CPU unpacks it.
    let written = archive_tree(tree, recipe, BufWriter::new(file))?.flush();
    written.context("cannot write", archive)
}

/// Returns the path of a tree file in a guest, where the top-level directories are links.
fn in_guest(file: &Path) -> PathBuf {
    if MERGED.iter().any(|folder| file.starts_with(folder)) {
        Path::new("usr").join(file)
    } else {
        file.to_path_buf()
    }
}

fn archive_tree<W: Write>(tree: &Path, recipe: &Recipe, out: W) -> Result<W> {
    let mut writer = Writer::new(out);
    let mut folders: BTreeSet<PathBuf> =
        ["proc", "sys", "dev", "run", "tmp", "root", "etc", "mnt", "var", "var/cache", "var/lib", "var/log"]
            .into_iter()
            .map(PathBuf::from)
            .collect();
    folders.extend(MERGED.map(|folder| Path::new("usr").join(folder)));
    // Keyed by path in the guest, because two tree paths may lead to the same file.
    let files: BTreeMap<PathBuf, PathBuf> =
        choose_files(tree, recipe)?.into_iter().map(|file| (in_guest(&file), tree.join(file))).collect();
    for file in files.keys() {
        folders.extend(file.ancestors().skip(1).filter(|part| !part.as_os_str().is_empty()).map(Into::into));
    }
    folders.insert("usr".into());
    // Sorted, so that parents precede their entries.
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
    // Programs that no package contains are links to busybox.
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
