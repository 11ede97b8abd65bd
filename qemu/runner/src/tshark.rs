//! Validates captures with Wireshark's dissectors.

use rdma_lab::error::{Error, IoContext, Result};
use rdma_lab::process::Temporary;
use rdma_lab::setup;
use std::path::Path;
use std::process::{Command, Stdio};

/// pcapng block type: interface description.
const INTERFACE_DESCRIPTION: u32 = 1;
/// Link type of InfiniBand frames.
const LINKTYPE_INFINIBAND: u16 = 247;
/// First link type for private use. An option selects its dissector.
const LINKTYPE_USER0: u16 = 147;
/// Option that maps the private link type to InfiniBand frames.
const USER0_IS_INFINIBAND: &str = "uat:user_dlts:\"User 0 (DLT=147)\",\"infiniband\",\"0\",\"\",\"0\",\"\"";

/// Heuristic dissectors, which guess the protocol of a payload. They sometimes detect a protocol in
/// our patterns and report it as malformed.
const GUESSES: [&str; 9] = [
    "eth_over_ib",
    "iser_infiniband",
    "lnet_ib",
    "mellanox_eoib",
    "nvme_rdma",
    "rpcrdma_infiniband",
    "sdp_infiniband",
    "smb_direct_infiniband",
    "smcr_infiniband",
];

/// Returns the values of `fields` (Wireshark's names, as `infiniband.bth.opcode`) of every packet
/// that passes `filter` (Wireshark's display filter, empty for all). Several values in one packet
/// are joined by commas.
///
/// Wireshark up to 4.0 does not support the link type of InfiniBand captures. Therefore it reads a
/// copy with a link type for private use, which an option maps to InfiniBand.
///
/// # Errors
/// The program tshark is missing and cannot be installed, or it rejects the capture, the filter or
/// a field.
pub fn read(capture: &Path, filter: &str, fields: &[&str]) -> Result<Vec<Vec<String>>> {
    setup::program("tshark", "tshark")?;
    let folder = Temporary::folder("tshark")?;
    let copy = folder.path().join("capture.pcapng");
    let mut data = std::fs::read(capture).context("cannot read", capture)?;
    map_link_type(&mut data)
        .ok_or_else(|| Error::Format(format!("{} is not a pcapng file", capture.display())))?;
    std::fs::write(&copy, data).context("cannot write", &copy)?;
    let mut command = Command::new("tshark");
    command.args(["-n", "-o", USER0_IS_INFINIBAND, "-T", "fields", "-E", "separator=/t", "-r"]).arg(&copy);
    for guess in GUESSES {
        command.args(["--disable-heuristic", guess]);
    }
    command.args(["--disable-protocol", "fcoib", "--disable-protocol", "nvme-rdma"]);
    if !filter.is_empty() {
        command.args(["-Y", filter]);
    }
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Program(format!("cannot start tshark: {error}")))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("Running as user")).collect();
        return Err(Error::Program(format!("tshark failed ({}): {}", output.status, lines.join("; "))));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

/// Replaces InfiniBand's link type by the private one in every interface description. Returns
/// `None` if a block is malformed.
fn map_link_type(data: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while at < data.len() {
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
        };
        let (kind, length) = (word(at)?, usize::try_from(word(at + 4)?).ok()?);
        if length < 12 || length % 4 != 0 || at.checked_add(length)? > data.len() {
            return None;
        }
        let link_type = data.get_mut(at + 8..at + 10)?;
        if kind == INTERFACE_DESCRIPTION && *link_type == LINKTYPE_INFINIBAND.to_le_bytes() {
            link_type.copy_from_slice(&LINKTYPE_USER0.to_le_bytes());
        }
        at += length;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    }

    #[test]
    fn only_interface_descriptions_of_infiniband_change() {
        let packet = block(6, &[247, 0, 0, 0]);
        let blocks = [
            block(0x0a0d_0d0a, &[0; 16]),
            block(1, &[247, 0, 0, 0, 0, 0, 0, 0]),
            block(1, &[1, 0, 0, 0, 0, 0, 0, 0]),
            packet.clone(),
        ];
        let mut data = blocks.concat();
        assert_eq!(map_link_type(&mut data), Some(()));
        let expected =
            [blocks[0].clone(), block(1, &[147, 0, 0, 0, 0, 0, 0, 0]), blocks[2].clone(), packet].concat();
        assert_eq!(data, expected);
    }

    #[test]
    fn what_is_no_pcapng_is_refused() {
        assert_eq!(map_link_type(&mut [1, 0, 0, 0, 0, 0, 0, 0]), None, "a block without length");
        assert_eq!(map_link_type(&mut block(1, &[247, 0, 0, 0])[..14]), None, "cut off");
    }
}
