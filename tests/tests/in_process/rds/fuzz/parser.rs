//! The packet parser: any bytes are parsed or refused, and what is parsed is what a second parser finds, written here from
//! the tables of the protocol.

use harness::seeds::{Random, only_seed, with_seed};
use rds_nostd::wire::{
    CONNECT_DATA_V4_LEN, CONNECT_DATA_V6_LEN, ConnectData, Extension, Extensions, FRAGMENT_LEN, Flags,
    HEADER_LEN, Header, MAX_MESSAGE_LEN, fragment_len, fragments,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

/// Cases of one seed.
const CASES: u64 = 20_000;

fn bytes<const N: usize>(random: &mut Random) -> [u8; N] {
    // Mostly small numbers, so that types and lengths are often right.
    std::array::from_fn(|_| if random.one_in(2) { random.below(12) as u8 } else { random.next() as u8 })
}

/// The Internet checksum as RFC 1071 defines it, word by word.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn header(random: &mut Random) {
    let mut bytes: [u8; HEADER_LEN] = bytes(random);
    match random.below(4) {
        0 => {}
        1 => bytes[30..32].fill(0),
        _ => {
            bytes[30..32].fill(0);
            let right = checksum(&bytes);
            bytes[30..32].copy_from_slice(&right.to_be_bytes());
        }
    }
    let flipped = random.one_in(4);
    if flipped {
        bytes[random.below(HEADER_LEN as u64) as usize] ^= 1 << random.below(8);
    }
    let unchecked = bytes[30..32] == [0, 0];
    match Header::decode(&bytes) {
        Err(_) => assert!(!unchecked && checksum(&bytes) != 0, "refused, though it is right: {bytes:02x?}"),
        Ok(header) => {
            assert!(unchecked || checksum(&bytes) == 0, "taken, though it is wrong: {bytes:02x?}");
            assert_eq!(header.sequence, number(&bytes[0..8]));
            assert_eq!(header.ack, number(&bytes[8..16]));
            assert_eq!(u64::from(header.len), number(&bytes[16..20]));
            assert_eq!(u64::from(header.sport), number(&bytes[20..22]));
            assert_eq!(u64::from(header.dport), number(&bytes[22..24]));
            assert_eq!((header.flags.bits(), header.credit), (bytes[24], bytes[25]));
            assert_eq!(header.extensions, bytes[32..48]);
            assert_eq!(header.is_congestion_map(), bytes[24] == 1);
            assert_eq!(header.is_acknowledgement(), bytes[16..24] == [0; 8]);
            assert_eq!(Header::decode(&header.encode()), Ok(header), "what it writes it reads");
            let found: Vec<Extension> = Extensions::of(&header).collect();
            assert_eq!(found, extensions(&header.extensions), "{:02x?}", header.extensions);
            let mut walk = Extensions::of(&header);
            walk.by_ref().for_each(drop);
            assert_eq!(walk.next(), None, "its end is its end");
        }
    }
}

/// The second parser of extension headers.
fn extensions(mut bytes: &[u8]) -> Vec<Extension> {
    // Bytes behind the type, by type; 0 is the end.
    const BODIES: [usize; 9] = [0, 4, 4, 8, 8, 2, 4, 4, 1];
    let mut found = Vec::new();
    while let [kind, rest @ ..] = bytes {
        let len = BODIES.get(usize::from(*kind)).copied().unwrap_or(0);
        if len == 0 || len > rest.len() {
            break;
        }
        let word = |at: usize| number(&rest[at..at + 4]) as u32;
        found.push(match kind {
            2 => Extension::Rdma { rkey: word(0) },
            3 => Extension::RdmaDest { rkey: word(0), offset: word(4) },
            4 => Extension::RdmaBytes { bytes: word(0), is_write: rest[4] == 1 },
            other => Extension::Other(*other),
        });
        bytes = &rest[len..];
    }
    found
}

fn own_headers(random: &mut Random) {
    let extension = match random.below(3) {
        0 => Extension::Rdma { rkey: random.next() as u32 },
        1 => Extension::RdmaDest { rkey: random.next() as u32, offset: random.next() as u32 },
        _ => Extension::RdmaBytes { bytes: random.next() as u32, is_write: random.one_in(2) },
    };
    let header = Header {
        sequence: random.next(),
        ack: random.next(),
        len: random.next() as u32,
        sport: random.next() as u16,
        dport: random.next() as u16,
        flags: Flags::from_bits_retain(random.next() as u8),
        credit: random.next() as u8,
        extensions: extension.encode(),
    };
    let written = header.encode();
    assert_eq!(Header::decode(&written), Ok(header));
    assert_eq!(Extensions::of(&header).collect::<Vec<_>>(), [extension]);
    let mut damaged = written;
    damaged[random.below(HEADER_LEN as u64) as usize] ^= 1 << random.below(8);
    if damaged[30..32] != [0, 0] && written[30..32] != [0, 0] {
        assert!(Header::decode(&damaged).is_err(), "a wrong bit is found");
    }
}

fn private_data(random: &mut Random) {
    let all: [u8; 92] = bytes(random);
    let is_v4 = random.one_in(2);
    let (each, needed) = if is_v4 { (4, CONNECT_DATA_V4_LEN) } else { (16, CONNECT_DATA_V6_LEN) };
    let given = &all[..random.below(all.len() as u64 + 1) as usize];
    let Some(data) = ConnectData::decode(given, is_v4) else {
        assert!(given.len() < needed, "{} bytes are enough", given.len());
        return;
    };
    assert!(given.len() >= needed, "{} bytes are too few", given.len());
    let address = |at: usize| match is_v4 {
        true => IpAddr::V4(Ipv4Addr::from_bits(number(&given[at..at + 4]) as u32)),
        false => {
            let high = u128::from(number(&given[at..at + 8]));
            IpAddr::V6(Ipv6Addr::from_bits(high << 64 | u128::from(number(&given[at + 8..at + 16]))))
        }
    };
    let rest = &given[2 * each..];
    assert_eq!((data.source, data.destination), (address(0), address(each)));
    assert_eq!((data.version, data.tos), ((rest[0], rest[1]), rest[4]));
    assert_eq!(u64::from(data.minor_mask), number(&rest[2..4]));
    let selected = match (rest[0], rest[1], data.minor_mask & 3) {
        (0, _, _) => Some((4, 0)),
        (3, 1, _) => Some((3, 1)),
        (4, _, 1) => Some((4, 0)),
        (4, _, 2 | 3) => Some((4, 1)),
        _ => None,
    };
    assert_eq!(data.select_version(), selected);
    assert_eq!(data.is_acceptable(), matches!((rest[0], rest[1]), (3, 1) | (4, _)));
    let (written, len) = data.encode();
    assert_eq!(len, needed);
    assert_eq!(ConnectData::decode(&written[..len], is_v4), Some(data), "what it writes it reads");
}

fn lengths(random: &mut Random) {
    let len = match random.below(3) {
        0 => random.below(MAX_MESSAGE_LEN as u64 + 1) as usize,
        1 => random.below(300) as usize * FRAGMENT_LEN + random.below(3) as usize,
        _ => random.next() as u32 as usize,
    };
    let count = fragments(len);
    assert!(count >= 1 && count * FRAGMENT_LEN >= len && (count - 1) * FRAGMENT_LEN < len.max(1));
    let index = random.below(count as u64) as usize;
    let expected = if index + 1 < count { FRAGMENT_LEN } else { len - (count - 1) * FRAGMENT_LEN };
    assert_eq!(fragment_len(len, index), expected, "fragment {index} of {len} bytes");
    assert_eq!(fragment_len(len, count + random.below(1 << 20) as usize), 0, "there is no more");
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    for _ in 0..CASES {
        match random.below(8) {
            0..4 => header(&mut random),
            4 => own_headers(&mut random),
            5..7 => private_data(&mut random),
            _ => lengths(&mut random),
        }
    }
}

#[test]
fn any_bytes_are_parsed_or_refused() {
    const NAME: &str = concat!(module_path!(), "::any_bytes_are_parsed_or_refused");
    if let Some(seed) = only_seed() {
        with_seed(NAME, seed, || run(seed));
        return;
    }
    // It is quick: the rest of the time is the machine's.
    let end = Instant::now() + super::duration() / 5;
    let mut seeds = 0;
    while Instant::now() < end {
        seeds += 1;
        with_seed(NAME, seeds, || run(seeds));
    }
    println!("{} cases", seeds * CASES);
    assert!(seeds > 0);
}
