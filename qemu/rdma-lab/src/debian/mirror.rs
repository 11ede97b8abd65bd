//! Detection of the host system and of a Debian mirror.

use std::path::{Path, PathBuf};

/// Distribution that this tool runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Host {
    /// Debian, whose mirrors carry the requested suites.
    Debian,
    /// Ubuntu or another descendant of Debian with its own mirrors.
    Descendant,
    /// A system without Debian's tools.
    Other,
}

pub(super) fn host() -> Host {
    std::fs::read_to_string("/etc/os-release").map_or(Host::Other, |text| host_in(&text))
}

/// Parses the text of os-release(5).
fn host_in(text: &str) -> Host {
    let words = |name: &str| -> Vec<String> {
        let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_default().trim_matches('"').split_whitespace().map(str::to_owned).collect()
    };
    let own = words("ID");
    let like = words("ID_LIKE");
    if own.iter().any(|word| word == "debian") {
        Host::Debian
    } else if own.iter().chain(&like).any(|word| word == "ubuntu" || word == "debian") {
        Host::Descendant
    } else {
        Host::Other
    }
}

/// Environment variable with a Debian mirror, which replaces the machine's mirror.
pub(super) const MIRROR_VARIABLE: &str = "DEBIAN_MIRROR";

/// Returns the address of a Debian mirror: from the user, or the one that this machine uses.
pub(super) fn mirror_of(host: Host) -> Option<String> {
    let named = std::env::var(MIRROR_VARIABLE).ok().filter(|named| !named.is_empty());
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(folder) = std::fs::read_dir("/etc/apt/sources.list.d") {
        let mut more: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).collect();
        more.sort();
        files.extend(more);
    }
    named.or_else(|| mirror_in(host, &files, |file| std::fs::read_to_string(file).ok()))
}

/// Returns the mirror that the source lists `files` name. Descendants of Debian, such as Ubuntu,
/// have their own packages at their mirrors.
fn mirror_in(host: Host, files: &[PathBuf], read: impl Fn(&Path) -> Option<String>) -> Option<String> {
    if host != Host::Debian {
        return None;
    }
    let found = files.iter().find_map(|file| {
        let text = read(file)?;
        match file.extension()?.to_str()? {
            "list" => mirror_in_list(&text),
            "sources" => mirror_in_deb822(&text),
            _ => None,
        }
    })?;
    // Cloud images name a file of mirrors instead of an address.
    match found.strip_prefix("mirror+file:") {
        Some(file) => read(Path::new(file))?.split_whitespace().next().map(str::to_owned),
        None => Some(found),
    }
}

/// Code names of Debian's releases, which are suites of its main archive. Each has an update suite.
const CODENAMES: [&str; 9] =
    ["bullseye", "bookworm", "trixie", "forky", "duke", "sid", "stable", "testing", "unstable"];

fn is_main_archive(address: &str, suites: &[&str], components: &[&str]) -> bool {
    !address.trim_end_matches('/').ends_with("-security")
        && suites.iter().any(|suite| CODENAMES.contains(suite))
        && components.contains(&"main")
}

/// Returns the mirror in the one-line format: `deb [options] address suite component...`.
fn mirror_in_list(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb ")?.trim_start();
        let rest = if rest.starts_with('[') { rest.split_once(']')?.1 } else { rest };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let (address, suite, components) = match words.as_slice() {
            [address, suite, components @ ..] => (address, suite, components),
            _ => return None,
        };
        is_main_archive(address, &[suite], components).then(|| (*address).to_owned())
    })
}

/// Returns the mirror in the deb822 format: paragraphs of `Field: value` lines.
fn mirror_in_deb822(text: &str) -> Option<String> {
    text.split("\n\n").find_map(|paragraph| {
        let field = |name: &str| -> Vec<&str> {
            paragraph
                .lines()
                .find_map(|line| {
                    let (key, value) = line.split_once(':')?;
                    key.trim().eq_ignore_ascii_case(name).then(|| value.split_whitespace().collect())
                })
                .unwrap_or_default()
        };
        if field("Enabled").first().is_some_and(|value| value.eq_ignore_ascii_case("no")) {
            return None;
        }
        let address = *field("URIs").first()?;
        is_main_archive(address, &field("Suites"), &field("Components")).then(|| address.to_owned())
    })
}

/// Returns the reason why there is no mirror.
pub(super) fn no_mirror(host: Host) -> String {
    match host {
        Host::Debian => format!(
            "no Debian mirror in this machine's apt sources (/etc/apt/sources.list*), nor in the variable {MIRROR_VARIABLE}"
        ),
        _ => format!(
            "guests are made of Debian's packages, which this machine's own mirrors do not have: set the variable \
             {MIRROR_VARIABLE} to the address of a Debian mirror"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_found_in_both_formats_and_never_the_security_archive() {
        let list = "# deb http://old.example/debian bookworm main\n\
                    deb http://updates.example/debian-security bookworm main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian trixie main contrib\n";
        assert_eq!(mirror_in_list(list).as_deref(), Some("http://mirror.example/debian"));
        let sources = "Types: deb\nURIs: http://sec.example/debian-security\nSuites: trixie\nComponents: main\n\n\
                       Types: deb\nURIs: http://off.example/debian\nSuites: trixie\nComponents: main\nEnabled: no\n\n\
                       Types: deb\nURIs: http://mirror.example/debian/\nSuites: trixie trixie-updates\nComponents: main\n";
        assert_eq!(mirror_in_deb822(sources).as_deref(), Some("http://mirror.example/debian/"));
        assert_eq!(mirror_in_list("deb http://other.example/apt nodistro main\n"), None);
    }

    #[test]
    fn debian_and_its_descendants_are_told_apart() {
        for (text, host) in [
            ("PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n", Host::Debian),
            ("ID=\"debian\"\nVERSION_ID=\"13\"\n", Host::Debian),
            ("NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n", Host::Descendant),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Host::Descendant),
            ("ID=fedora\nVERSION_ID=42\n", Host::Other),
            ("ID=rocky\nID_LIKE=\"rhel centos fedora\"\n", Host::Other),
            ("", Host::Other),
        ] {
            assert_eq!(host_in(text), host, "{text}");
        }
    }

    /// Source lists of fresh systems, with the mirrors' names replaced.
    #[test]
    fn mirrors_of_recorded_source_lists() {
        // Ubuntu 24.04 on a cloud machine, and its file of mirrors.
        let ubuntu_24 = (
            "/etc/apt/sources.list.d/ubuntu.sources",
            "Types: deb\nURIs: mirror+file:/etc/apt/apt-mirrors.txt\n\
             Suites: noble noble-updates noble-backports\nComponents: main universe restricted multiverse\n\
             Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n\n\
             Types: deb\nURIs: http://updates.example/ubuntu/\nSuites: noble-security\n\
             Components: main universe restricted multiverse\n\
             Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n",
        );
        let ubuntu_mirrors = (
            "/etc/apt/apt-mirrors.txt",
            "http://cloud.example/ubuntu/\tpriority:1\nhttp://archive.example/ubuntu/\n",
        );
        // Ubuntu 22.04.
        let ubuntu_22 = (
            "/etc/apt/sources.list",
            "deb http://archive.example/ubuntu/ jammy main restricted\n# deb-src http://archive.example/ubuntu/ jammy main\n\
             deb http://archive.example/ubuntu/ jammy-updates main restricted\n\
             deb http://updates.example/ubuntu/ jammy-security main restricted\n",
        );
        // Debian 13 on a cloud machine, and a container of Debian 12.
        let debian_13 = (
            "/etc/apt/sources.list.d/debian.sources",
            "Types: deb deb-src\nURIs: mirror+file:/etc/apt/mirrors/debian.list\n\
             Suites: trixie trixie-updates trixie-backports\nComponents: main\n\n\
             Types: deb deb-src\nURIs: mirror+file:/etc/apt/mirrors/debian-security.list\n\
             Suites: trixie-security\nComponents: main\n",
        );
        let debian_mirrors = ("/etc/apt/mirrors/debian.list", "https://mirror.example/debian\n");
        let debian_12 = (
            "/etc/apt/sources.list.d/debian.sources",
            "Types: deb\n# http://snapshot.example/archive/debian/20260101T000000Z\n\
             URIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
        );
        for (host, files, expected) in [
            (Host::Descendant, &[ubuntu_24, ubuntu_mirrors][..], None),
            (Host::Descendant, &[ubuntu_22], None),
            // A container that says it is Debian, with Ubuntu's lists.
            (Host::Debian, &[ubuntu_22], None),
            (Host::Debian, &[debian_13, debian_mirrors], Some("https://mirror.example/debian")),
            (Host::Debian, &[debian_13], None),
            (Host::Debian, &[debian_12], Some("http://mirror.example/debian")),
            (Host::Debian, &[], None),
        ] {
            let read = |path: &Path| {
                files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned())
            };
            let lists: Vec<PathBuf> = files.iter().map(|(name, _)| PathBuf::from(name)).collect();
            assert_eq!(mirror_in(host, &lists, read).as_deref(), expected, "{host:?} {files:?}");
        }
    }

    #[test]
    fn who_has_no_mirror_hears_how_to_name_one() {
        for host in [Host::Debian, Host::Descendant] {
            assert!(no_mirror(host).contains(MIRROR_VARIABLE), "{host:?}");
        }
        assert!(no_mirror(Host::Descendant).contains("this machine's own mirrors do not have"));
    }
}
