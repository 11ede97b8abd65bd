//! Packet captures: pcapng (draft-ietf-opsawg-pcapng) with InfiniBand frames from LRH to VCRC, or
//! Ethernet frames without their frame check sequence.
//!
//! Wireshark and tshark up to 4.0 (Debian 12) know InfiniBand frames only inside ERF records (link type 197, record type 21);
//! `LINKTYPE_INFINIBAND` (247) they call unknown. Both can be written; ERF, which every version reads, is the default.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::infiniband::packet::{VCRC_LEN, vcrc};

/// How frames lie in the capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// Each behind an ERF header of 16 bytes (`LINKTYPE_ERF`, 197).
    #[default]
    Erf,
    /// Bare, beginning with the LRH (`LINKTYPE_INFINIBAND`, 247).
    Infiniband,
    /// Ethernet frames (`LINKTYPE_ETHERNET`, 1).
    Ethernet,
}

impl Encapsulation {
    /// The link type in the interface description.
    #[must_use]
    pub const fn link_type(self) -> u16 {
        match self {
            Self::Erf => 197,
            Self::Infiniband => 247,
            Self::Ethernet => 1,
        }
    }
}

/// ERF record type of InfiniBand frames.
const ERF_TYPE_INFINIBAND: u8 = 21;
/// ERF flag: records vary in length.
const ERF_VARYING_LENGTH: u8 = 4;
/// Bytes of an ERF header.
const ERF_HEADER: usize = 16;

/// The ERF header of a frame of `len` bytes at `at` nanoseconds since the Unix epoch.
fn erf_header(at: u64, len: usize) -> [u8; ERF_HEADER] {
    // Seconds in the upper half, their fraction in units of 2^-32 in the lower, least significant byte first.
    let fraction = ((at % 1_000_000_000) << 32) / 1_000_000_000;
    let time = (at / 1_000_000_000) << 32 | fraction;
    let mut header = [0; ERF_HEADER];
    header[..8].copy_from_slice(&time.to_le_bytes());
    header[8] = ERF_TYPE_INFINIBAND;
    header[9] = ERF_VARYING_LENGTH;
    header[10..12].copy_from_slice(&((len + ERF_HEADER) as u16).to_be_bytes());
    header[14..].copy_from_slice(&(len as u16).to_be_bytes());
    header
}

/// Receives every packet that enters the fabric.
pub trait Capture {
    /// A port was attached: `index` is what later packets name.
    fn interface(&mut self, index: u32, name: &str);
    /// A packet, LRH to ICRC, as the port `interface` sent it `now`. `comment` says what the fabric then did to it.
    fn packet(&mut self, interface: u32, now: u64, bytes: &[u8], comment: Option<&str>);
    /// Brings everything out.
    ///
    /// # Errors
    /// The first error of all that happened since the capture began.
    fn finish(&mut self) -> io::Result<()>;
}

/// Writes a pcapng section to any [`Write`]; give it a `BufWriter` for a file.
///
/// The first error of the writer ends the capture. [`finish`](Capture::finish) returns it; the
/// network continues.
pub struct PcapNg<W: Write> {
    section: Arc<Mutex<Section<W>>>,
    encapsulation: Encapsulation,
    /// Interfaces of the network, and their numbers in the section.
    interfaces: Vec<(u32, u32)>,
}

/// A section, which several networks may write to.
struct Section<W: Write> {
    writer: W,
    /// Nanoseconds since the Unix epoch at time 0 of the networks.
    epoch: u64,
    /// Interfaces in the section. pcapng numbers them by their order.
    interfaces: u32,
    error: Option<io::Error>,
    block: Vec<u8>,
}

impl<W: Write> fmt::Debug for PcapNg<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PcapNg")
            .field("encapsulation", &self.encapsulation)
            .field("interfaces", &self.interfaces.len())
            .finish_non_exhaustive()
    }
}

impl<W: Write> PcapNg<W> {
    /// Begins a section. `epoch` is added to the network's time, which makes nanoseconds since the
    /// Unix epoch. With 0, times are relative.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn new(writer: W, epoch: u64) -> io::Result<Self> {
        Self::with_encapsulation(writer, epoch, Encapsulation::default())
    }

    /// Begins a section like [`new`](Self::new), with frames in the form given.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn with_encapsulation(writer: W, epoch: u64, encapsulation: Encapsulation) -> io::Result<Self> {
        let mut section = Section { writer, epoch, interfaces: 0, error: None, block: Vec::new() };
        section.begin(0x0a0d_0d0a);
        section.block.extend_from_slice(&0x1a2b_3c4du32.to_le_bytes());
        section.block.extend_from_slice(&1u16.to_le_bytes());
        section.block.extend_from_slice(&0u16.to_le_bytes());
        section.block.extend_from_slice(&u64::MAX.to_le_bytes()); // section length: not given
        section.option(4, concat!("hca-model ", env!("CARGO_PKG_VERSION")).as_bytes()); // shb_userappl
        section.end_options();
        section.end();
        match section.error.take() {
            Some(error) => Err(error),
            None => {
                let section = Arc::new(Mutex::new(section));
                Ok(Self { section, encapsulation, interfaces: Vec::new() })
            }
        }
    }

    /// Returns a capture of another network to the same section, with frames in the form given.
    #[must_use]
    pub fn another(&self, encapsulation: Encapsulation) -> Self {
        Self { section: Arc::clone(&self.section), encapsulation, interfaces: Vec::new() }
    }

    fn section(&self) -> MutexGuard<'_, Section<W>> {
        self.section.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write> Section<W> {
    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.block.extend_from_slice(&kind.to_le_bytes());
        self.block.extend_from_slice(&[0; 4]);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = value.get(..value.len().min(0xfff0)).unwrap_or(value);
        self.block.extend_from_slice(&code.to_le_bytes());
        self.block.extend_from_slice(&(value.len() as u16).to_le_bytes());
        self.block.extend_from_slice(value);
        self.pad();
    }

    fn end_options(&mut self) {
        self.block.extend_from_slice(&[0; 4]);
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn end(&mut self) {
        let len = (self.block.len() as u32 + 4).to_le_bytes();
        self.block.extend_from_slice(&len);
        if let Some(place) = self.block.get_mut(4..8) {
            place.copy_from_slice(&len);
        }
        if self.error.is_none() {
            self.error = self.writer.write_all(&self.block).err();
        }
    }

    /// Describes an interface and returns its number.
    fn interface(&mut self, link_type: u16, name: &str) -> u32 {
        self.begin(1);
        self.block.extend_from_slice(&link_type.to_le_bytes());
        self.block.extend_from_slice(&[0; 2]);
        self.block.extend_from_slice(&0u32.to_le_bytes()); // no snap length
        self.option(2, name.as_bytes()); // if_name
        self.option(9, &[9]); // if_tsresol: nanoseconds
        self.end_options();
        self.end();
        self.interfaces += 1;
        self.interfaces - 1
    }
}

impl<W: Write> Capture for PcapNg<W> {
    fn interface(&mut self, index: u32, name: &str) {
        let number = self.section().interface(self.encapsulation.link_type(), name);
        self.interfaces.push((index, number));
    }

    fn packet(&mut self, interface: u32, now: u64, bytes: &[u8], comment: Option<&str>) {
        let Some((_, interface)) = self.interfaces.iter().find(|(index, _)| *index == interface) else {
            debug_assert!(false, "a packet of a port that was never announced");
            return;
        };
        let mut section = self.section();
        let at = section.epoch.wrapping_add(now);
        let (header, trailer) = match self.encapsulation {
            Encapsulation::Erf => {
                (Some(erf_header(at, bytes.len() + VCRC_LEN)), Some(vcrc(bytes).to_le_bytes()))
            }
            Encapsulation::Infiniband => (None, Some(vcrc(bytes).to_le_bytes())),
            Encapsulation::Ethernet => (None, None),
        };
        let around = header.as_slice().as_flattened().len() + trailer.as_slice().as_flattened().len();
        let len = ((bytes.len() + around) as u32).to_le_bytes();
        section.begin(6);
        section.block.extend_from_slice(&interface.to_le_bytes());
        section.block.extend_from_slice(&((at >> 32) as u32).to_le_bytes());
        section.block.extend_from_slice(&(at as u32).to_le_bytes());
        section.block.extend_from_slice(&len);
        section.block.extend_from_slice(&len);
        section.block.extend(header.iter().flatten());
        section.block.extend_from_slice(bytes);
        section.block.extend(trailer.iter().flatten());
        section.pad();
        if let Some(comment) = comment {
            section.option(1, comment.as_bytes());
            section.end_options();
        }
        section.end();
    }

    fn finish(&mut self) -> io::Result<()> {
        let mut section = self.section();
        match section.error.take() {
            Some(error) => Err(error),
            None => section.writer.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a capture has written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Written {
        fn blocks(&self) -> Vec<(u32, Vec<u8>)> {
            blocks(&self.0.lock().unwrap())
        }
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    /// Type and body of every block, both lengths checked.
    fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut blocks = Vec::new();
        while !bytes.is_empty() {
            let len = word(bytes, 4) as usize;
            assert_eq!(word(bytes, len - 4) as usize, len);
            assert_eq!(len % 4, 0);
            blocks.push((word(bytes, 0), bytes[8..len - 4].to_vec()));
            bytes = &bytes[len..];
        }
        blocks
    }

    #[test]
    fn sections_interfaces_and_packets() {
        let file = Written::default();
        let mut capture =
            PcapNg::with_encapsulation(file.clone(), 0x1_0000_0000, Encapsulation::Infiniband).unwrap();
        capture.interface(7, "node0");
        capture.interface(3, "subnet manager");
        let packet: Vec<u8> = (0..30).collect();
        capture.packet(3, 5, &packet, None);
        capture.packet(7, 6, &packet, Some("lost"));
        capture.finish().unwrap();
        let blocks = file.blocks();
        assert_eq!(blocks.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [0x0a0d_0d0a, 1, 1, 6, 6]);
        assert_eq!(word(&blocks[0].1, 0), 0x1a2b_3c4d);
        assert_eq!(word(&blocks[1].1, 0), 247);
        assert_eq!(&blocks[1].1[8..17], b"\x02\0\x05\0node0");
        let body = &blocks[3].1;
        assert_eq!(
            [word(body, 0), word(body, 4), word(body, 8), word(body, 12), word(body, 16)],
            [1, 1, 5, 32, 32]
        );
        assert_eq!(body[20..50], packet);
        assert_eq!(body[50..52], vcrc(&packet).to_le_bytes());
        assert_eq!(body.len(), 52, "no options, no padding beyond a multiple of four");
        assert_eq!(&blocks[4].1[52..], b"\x01\0\x04\0lost\0\0\0\0");
    }

    #[test]
    fn ethernet_frames_are_captured_as_they_are() {
        let file = Written::default();
        let mut capture = PcapNg::with_encapsulation(file.clone(), 0, Encapsulation::Ethernet).unwrap();
        capture.interface(0, "node0");
        capture.packet(0, 5, &[0xab; 30], None);
        capture.finish().unwrap();
        let blocks = file.blocks();
        assert_eq!(word(&blocks[1].1, 0), 1);
        let body = &blocks[2].1;
        assert_eq!([word(body, 12), word(body, 16)], [30, 30]);
        assert_eq!(body[20..], [&[0xab; 30][..], &[0; 2]].concat(), "padded to a multiple of four");
    }

    #[test]
    fn networks_share_a_section_with_interfaces_of_their_own() {
        let file = Written::default();
        let mut infiniband =
            PcapNg::with_encapsulation(file.clone(), 100, Encapsulation::Infiniband).unwrap();
        let mut ethernet = infiniband.another(Encapsulation::Ethernet);
        infiniband.interface(0, "a");
        ethernet.interface(0, "b");
        infiniband.interface(1, "c");
        ethernet.packet(0, 1, &[1; 20], None);
        infiniband.packet(1, 2, &[2; 20], None);
        infiniband.packet(0, 3, &[3; 20], None);
        ethernet.finish().unwrap();
        let blocks = file.blocks();
        let link_types: Vec<u32> = blocks[1..4].iter().map(|(_, body)| word(body, 0)).collect();
        assert_eq!(link_types, [247, 1, 247]);
        let packets = blocks[4..].iter().map(|(kind, body)| {
            assert_eq!(*kind, 6);
            [word(body, 0), word(body, 8), word(body, 12)]
        });
        let packets: Vec<[u32; 3]> = packets.collect();
        assert_eq!(packets, [[1, 101, 20], [2, 102, 22], [0, 103, 22]], "interface, time, length");
    }

    #[test]
    fn erf_records() {
        let file = Written::default();
        let mut capture = PcapNg::new(file.clone(), 1_800_000_000_000_000_000).unwrap();
        capture.interface(0, "node0");
        capture.packet(0, 500_000_000, &[0xab; 30], None);
        capture.finish().unwrap();
        let blocks = file.blocks();
        assert_eq!(word(&blocks[1].1, 0), 197);
        let body = &blocks[2].1;
        assert_eq!([word(body, 12), word(body, 16)], [48, 48]);
        // Half a second, then 1 800 000 000 = 0x6b49d200 seconds; type 21, varying length; 48 bytes of which 32 of frame.
        assert_eq!(body[20..36], [0, 0, 0, 0x80, 0, 0xd2, 0x49, 0x6b, 21, 4, 0, 48, 0, 0, 0, 32]);
        assert_eq!(body[36..66], [0xab; 30]);
    }

    struct Full;
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() > 60 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_told_at_the_end() {
        let mut capture = PcapNg::new(Full, 0).unwrap();
        capture.interface(0, "a");
        capture.packet(0, 0, &[0; 100], None);
        capture.packet(0, 0, &[0; 4], None);
        assert_eq!(capture.finish().map_err(|e| e.kind()), Err(io::ErrorKind::StorageFull));
    }
}
