//! Builds an image with GRUB, the unikernel and its command line. The image boots by BIOS and by
//! UEFI, from a CD, a disk or a USB stick.

use crate::error::{Error, IoContext, Result};
use crate::process::Temporary;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Required programs and the Debian packages that contain them. The two GRUBs are directories.
const NEEDED: [(&str, &str); 5] = [
    ("/usr/bin/grub-mkrescue", "grub-common"),
    ("/usr/bin/xorriso", "xorriso"),
    ("/usr/bin/mformat", "mtools"),
    ("/usr/lib/grub/i386-pc", "grub-pc-bin"),
    ("/usr/lib/grub/x86_64-efi", "grub-efi-amd64-bin"),
];

/// GRUB modules: its menu, the protocol, the image's file systems and partitions, a console.
/// Multiboot2 needs EFI's video modules.
const MODULES: &str =
    "normal multiboot2 serial terminal iso9660 part_gpt part_msdos all_video video search search_fs_file";

/// GRUB modules for booting over a network.
const NETWORK_MODULES: &str = "normal multiboot2 serial terminal tftp net configfile all_video video";

/// File that a network card loads by BIOS. A DHCP server announces it.
pub const PXE_BIOS: &str = "boot/grub/i386-pc/core.0";
/// The file that UEFI loads from a network.
pub const PXE_UEFI: &str = "boot/grub/x86_64-efi/core.efi";

/// Returns the missing Debian packages.
#[must_use]
pub fn missing_packages() -> Vec<&'static str> {
    NEEDED.iter().filter(|(path, _)| !Path::new(path).exists()).map(|(_, package)| *package).collect()
}

fn require_packages() -> Result<()> {
    match missing_packages() {
        missing if missing.is_empty() => Ok(()),
        missing => Err(Error::Missing {
            what: "an image that boots needs GRUB and its helpers".into(),
            remedy: format!("install these Debian packages: {}", missing.join(" ")),
        }),
    }
}

/// Creates the image `output`, which boots the unikernel in `image` with `words` as its command
/// line.
///
/// # Errors
/// Packages are missing, `words` cannot be quoted for GRUB, or GRUB's program fails.
pub fn make(image: &Path, words: &str, output: &Path) -> Result<()> {
    require_packages()?;
    let folder = Temporary::folder("iso")?;
    lay_out(image, words, folder.path())?;
    let mut command = Command::new(NEEDED[0].0);
    command.arg("-o").arg(output).arg(format!("--install-modules={MODULES}")).arg(folder.path());
    call(command, output)
}

/// Fills `folder` for a TFTP server. Network cards boot the unikernel from it with `words` as its
/// command line: [`PXE_BIOS`] by BIOS, [`PXE_UEFI`] by UEFI.
///
/// # Errors
/// As for [`make`].
pub fn make_network(image: &Path, words: &str, folder: &Path) -> Result<()> {
    require_packages()?;
    lay_out(image, words, folder)?;
    let mut command = Command::new("/usr/bin/grub-mknetdir");
    let mut place = std::ffi::OsString::from("--net-directory=");
    place.push(folder);
    command.arg(place).arg("--subdir=boot/grub").arg(format!("--install-modules={NETWORK_MODULES}"));
    call(command, &folder.join(PXE_UEFI))
}

/// Copies the unikernel and writes GRUB's menu, which boots without delay. GRUB passes EFI's screen
/// to the unikernel only if its video drivers are loaded.
fn lay_out(image: &Path, words: &str, folder: &Path) -> Result<()> {
    let words = quoted(words)?;
    let grub = folder.join("boot/grub");
    std::fs::create_dir_all(&grub).context("cannot create", &grub)?;
    let elf = std::fs::read(image).context("cannot read", image)?;
    let kernel = folder.join("boot/unikernel");
    std::fs::write(&kernel, stripped(&elf)?).context("cannot write", &kernel)?;
    let config = grub.join("grub.cfg");
    let text = format!(
        "serial --unit=0 --speed=115200\nterminal_output console serial\ninsmod all_video\nset timeout=0\n\
         menuentry unikernel {{\n  multiboot2 /boot/unikernel{words}\n}}\n"
    );
    std::fs::write(&config, text).context("cannot write", &config)
}

/// Runs one of GRUB's programs, which creates `output`.
fn call(mut command: Command, output: &Path) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let made = command
        .args(["--fonts=", "--locales=", "--themes="])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Program(format!("cannot start {program}: {error}")))?;
    if !made.status.success() || !output.exists() {
        let said = String::from_utf8_lossy(&made.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
        return Err(Error::Program(format!("{program} fails: {last}")));
    }
    Ok(())
}

/// Returns the words quoted for GRUB's script, each after a space.
fn quoted(words: &str) -> Result<String> {
    let mut text = String::new();
    for word in words.split_ascii_whitespace() {
        if word.contains(['\'', '\\']) || word.chars().any(char::is_control) {
            return Err(Error::Usage(format!("the word {word:?} cannot be given to GRUB")));
        }
        text.push_str(&format!(" '{word}'"));
    }
    Ok(text)
}

/// Returns the ELF image reduced to headers and segments. A boot loader would load the sections
/// too.
///
/// # Errors
/// The file is not a 64-bit ELF.
pub fn stripped(elf: &[u8]) -> Result<Vec<u8>> {
    let bad = || Error::Format("the image is no little-endian ELF of 64 bits".into());
    let field = |at: usize, len: usize| -> Result<usize> {
        let bytes = elf.get(at..at + len).ok_or_else(bad)?;
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return Err(bad());
    }
    let (headers, size, count) = (field(0x20, 8)?, field(0x36, 2)?, field(0x38, 2)?);
    let mut end = headers.checked_add(size * count).ok_or_else(bad)?;
    for at in (0..count).map(|index| headers + index * size) {
        end = end.max(field(at + 8, 8)?.checked_add(field(at + 0x20, 8)?).ok_or_else(bad)?);
    }
    let mut image = elf.get(..end).ok_or_else(bad)?.to_vec();
    // Clear the offset, count and name index of the section headers.
    image[0x28..0x30].fill(0);
    image[0x3c..0x40].fill(0);
    Ok(image)
}

/// Returns the path of OVMF, UEFI firmware for QEMU, if its Debian package is installed.
#[must_use]
pub fn ovmf() -> Option<PathBuf> {
    let path = PathBuf::from("/usr/share/ovmf/OVMF.fd");
    path.exists().then_some(path)
}

/// Returns OVMF's code, which QEMU keeps in flash memory, and its empty variables, if its Debian package is installed.
#[must_use]
pub fn ovmf_flash() -> Option<[PathBuf; 2]> {
    let paths = ["OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"].map(|name| Path::new("/usr/share/OVMF").join(name));
    paths.iter().all(|path| path.exists()).then_some(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_or_refused() {
        assert_eq!(quoted("").unwrap(), "");
        assert_eq!(quoted("app=hello  ip=10.0.0.1/24").unwrap(), " 'app=hello' 'ip=10.0.0.1/24'");
        assert_eq!(quoted("a=$x;b").unwrap(), " 'a=$x;b'");
        assert!(quoted("a='b").is_err() && quoted("a=\\n").is_err());
    }

    #[test]
    fn a_stripped_image_has_its_segments_and_no_sections() {
        // A header, one program header for bytes 0x78..0x80, then a malformed section header table.
        let mut elf = vec![0; 0x100];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[0x20], elf[0x36], elf[0x38]) = (0x40, 0x38, 1);
        (elf[0x28], elf[0x3c], elf[0x3e]) = (0xc0, 1, 1);
        (elf[0x48], elf[0x60]) = (0x78, 8);
        elf[0x78..0x80].copy_from_slice(b"segment!");
        let image = stripped(&elf).unwrap();
        assert!(image.ends_with(b"segment!") && image.len() == 0x80);
        assert!(image[0x28..0x30].iter().chain(&image[0x3c..0x40]).all(|byte| *byte == 0));
        elf[0x60] = 0xff;
        assert!(stripped(&elf).is_err(), "a segment that ends behind the file");
        assert!(stripped(b"MZ").is_err());
    }
}
