//! Layouts by hand, and random values and bytes. A test of the workspace compares the layouts with
//! a C compiler's.

use std::net::SocketAddr;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::profile::Profile;
use crate::rdma::{AtomicOp, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus};
use crate::wire::testing::hex;

const ABIS: [Abi; 4] = [Abi::LINUX, Abi::LINUX_MUSL, Abi::ILLUMOS, Abi::SOLARIS];

const ARGS: RdsRdmaArgs = RdsRdmaArgs {
    cookie: RdmaCookie(0x0000_0100_0000_0300),
    remote_vec: RdsIovec { addr: 0x1111, bytes: 0x2222 },
    local_vec_addr: 0x3333,
    nr_local: 0x44,
    flags: RdmaFlags::READWRITE.union(RdmaFlags::NOTIFY_ME),
    user_token: 0x5566_7788,
};

/// Encodes these messages into a buffer.
fn buffer(abi: Abi, messages: &[Cmsg]) -> Vec<u8> {
    let mut bytes = vec![0xee; 1024];
    let mut writer = ControlWriter::new(abi, &mut bytes);
    assert!(messages.iter().all(|message| writer.push(message)));
    let (len, truncated) = writer.finish();
    assert!(!truncated);
    bytes.truncate(len);
    bytes
}

/// `CMSG_LEN` and `CMSG_SPACE` of each system for every payload length.
#[test]
fn headers_take_what_each_system_gives_them() {
    for (payload, linux, solaris) in [
        (4, (20, 24), (16, 16)),
        (8, (24, 24), (20, 20)),
        (16, (32, 32), (28, 28)),
        (32, (48, 48), (44, 44)),
        (36, (52, 56), (48, 48)),
        (56, (72, 72), (68, 68)),
        (72, (88, 88), (84, 84)),
    ] {
        for (abi, expected) in ABIS.into_iter().zip([linux, linux, solaris, solaris]) {
            assert_eq!((abi.cmsg_len(payload), abi.cmsg_space(payload)), expected, "{payload} {abi:?}");
        }
    }
    assert_eq!(ABIS.map(|abi| abi.notify_len()), [16, 16, 16, 8]);
    assert_eq!((Abi::of(Profile::Linux), Abi::of(Profile::Solaris)), (Abi::LINUX, Abi::SOLARIS));
}

/// Checks the bytes on a little-endian machine.
#[test]
#[cfg(target_endian = "little")]
fn fields_are_where_they_belong() {
    let args = "0003000000010000 1111000000000000 2222000000000000 3333000000000000 4400000000000000 \
                2100000000000000 8877665500000000";
    let linux = [hex("4800000000000000 14010000 01000000"), hex(args)].concat();
    assert_eq!(buffer(Abi::LINUX, &[Cmsg::RdmaArgs(ARGS)]), linux);
    assert_eq!(buffer(Abi::LINUX_MUSL, &[Cmsg::RdmaArgs(ARGS)]), linux);
    let solaris = [hex("44000000 10010000 01000000"), hex(args)].concat();
    assert_eq!(buffer(Abi::ILLUMOS, &[Cmsg::RdmaArgs(ARGS)]), solaris);
    assert_eq!(buffer(Abi::SOLARIS, &[Cmsg::RdmaArgs(ARGS)]), solaris);

    let status = Cmsg::RdmaStatus(RdmaNotify { user_token: 0x1_0000_0002, status: RdmaStatus::Dropped });
    assert_eq!(
        buffer(Abi::LINUX, &[status]),
        hex("2000000000000000 14010000 04000000 0200000001000000 0300000000000000")
    );
    assert_eq!(
        buffer(Abi::ILLUMOS, &[status]),
        hex("1c000000 10010000 04000000 0200000001000000 0300000000000000")
    );
    assert_eq!(buffer(Abi::SOLARIS, &[status]), hex("14000000 10010000 04000000 02000000 03000000"));

    // A message whose end is not aligned.
    let cookies = [Cmsg::ZcopyCookie(7), Cmsg::RdmaDest(RdmaCookie(9))];
    assert_eq!(
        buffer(Abi::LINUX, &cookies),
        hex(
            "1400000000000000 14010000 0c000000 07000000 00000000 1800000000000000 14010000 02000000 0900000000000000"
        )
    );
    let trace = RxTraceOption::decode(&[2, 2, 0, 0]).expect("positions");
    assert_eq!(
        buffer(Abi::LINUX, &[Cmsg::RxpathLatency(trace.trace([10, 11, 12]))]),
        hex(
            "3000000000000000 14010000 0b000000 02020000 00000000 0c00000000000000 0a00000000000000 0000000000000000"
        )
    );
}

#[test]
fn what_is_wrong_is_told() {
    let abi = Abi::LINUX;
    let good = buffer(abi, &[Cmsg::RdmaDest(RdmaCookie(5))]);
    let refused = |bytes: &[u8]| SendControl::parse(abi, bytes).expect_err("wrong");
    let with_len = |len: u64| {
        let mut bytes = good.clone();
        bytes[..8].copy_from_slice(&len.to_ne_bytes());
        bytes
    };
    for len in [0, 15, 25, u64::MAX] {
        let error = refused(&with_len(len));
        assert_eq!(error, CmsgError::Length { at: 0, cmsg_len: len as usize, left: 24 });
        assert!(error.to_string().contains("CMSG_LEN"), "{error}");
    }
    let short = CmsgError::Payload { kind: 2, needed: 8, found: 7 };
    assert_eq!(refused(&with_len(23)), short);
    assert_eq!(short.to_string(), "control message 2 has 7 bytes and needs 8: set cmsg_len by CMSG_LEN(8)");
    let of_type = |kind: i32| {
        let mut bytes = good.clone();
        bytes[12..16].copy_from_slice(&kind.to_ne_bytes());
        bytes
    };
    for kind in [-1, 0, 10, 14, i32::MIN, i32::MAX] {
        assert_eq!(refused(&of_type(kind)), CmsgError::Type(kind));
    }
    let (map, dest) = (Cmsg::RdmaMap(RdsGetMrArgs::default()), Cmsg::RdmaDest(RdmaCookie(5)));
    let (args, update) = (Cmsg::RdmaArgs(ARGS), Cmsg::CongUpdate(1));
    for (messages, error) in [
        (&[args, args][..], CmsgError::Twice(1)),
        (&[dest, map], CmsgError::Twice(3)),
        (&[map, dest], CmsgError::Twice(2)),
        (&[map, args], CmsgError::OfferWithOperation),
        (&[args, dest], CmsgError::OfferWithOperation),
        (&[update], CmsgError::OnlyReceived(5)),
    ] {
        assert_eq!(refused(&buffer(abi, messages)), error);
        assert_eq!(crate::RdsError::from(error), crate::RdsError::InvalidArgument);
    }
    // A program with 32-bit tokens ends its structure after the token.
    let args = buffer(Abi::SOLARIS, &[args]);
    let ended = |len: u32| [&len.to_ne_bytes()[..], &args[4..len as usize]].concat();
    assert_eq!(SendControl::parse(Abi::SOLARIS, &ended(64)).map(|control| control.rdma), Ok(Some(ARGS)));
    let short = CmsgError::Payload { kind: 1, needed: 52, found: 51 };
    assert_eq!(SendControl::parse(Abi::SOLARIS, &ended(63)), Err(short));
    // rds(3SOCKET) defines no type after congestion updates.
    let atomic = buffer(Abi::ILLUMOS, &[Cmsg::ZcopyCookie(1)]);
    assert_eq!(SendControl::parse(Abi::ILLUMOS, &atomic), Err(CmsgError::Type(12)));
    let mut status =
        buffer(abi, &[Cmsg::RdmaStatus(RdmaNotify { user_token: 1, status: RdmaStatus::Success })]);
    status[24] = 5;
    assert_eq!(ControlReader::new(abi, &status).next(), Some(Err(CmsgError::Status(5))));
}

#[test]
fn what_is_of_others_is_passed_over() {
    let abi = Abi::LINUX;
    let mut bytes = buffer(abi, &[Cmsg::ZcopyCookie(1), Cmsg::RdmaArgs(ARGS)]);
    // SOL_SOCKET.
    bytes[8..12].copy_from_slice(&1i32.to_ne_bytes());
    let control = SendControl::parse(abi, &bytes).expect("one of ours");
    assert_eq!(control, SendControl { rdma: Some(ARGS), ..SendControl::default() });
    // Bytes after the last message are ignored if they are shorter than a header.
    bytes.extend_from_slice(&[0xff; 15]);
    assert_eq!(SendControl::parse(abi, &bytes), Ok(control));
}

/// As Linux's `put_cmsg`: the header must fit, and the payload is cut.
#[test]
fn what_does_not_fit_is_cut_and_told() {
    for room in 0..=64 {
        let mut bytes = [0xee; 64];
        let mut writer = ControlWriter::new(Abi::LINUX, &mut bytes[..room]);
        let (first, second) =
            (writer.push(&Cmsg::RdmaDest(RdmaCookie(1))), writer.push(&Cmsg::CongUpdate(2)));
        let (len, truncated) = writer.finish();
        assert_eq!((first, second), (room >= 24, room >= 48), "{room}");
        assert_eq!(truncated, room < 48, "{room}");
        let expected = match room {
            0..16 => 0,
            24..40 => 24,
            _ => room.min(48),
        };
        assert_eq!(len, expected, "{room}");
        assert!(bytes[room..].iter().all(|byte| *byte == 0xee), "{room}: outside the buffer");
    }
    let mut bytes = [0; 100];
    for (abi, most) in ABIS.into_iter().zip([3, 3, 3, 5]) {
        assert_eq!(ControlWriter::new(abi, &mut bytes).room_for_statuses(), most);
        assert_eq!(ControlWriter::new(abi, &mut []).room_for_statuses(), 1);
    }
}

#[test]
fn structures_of_options() {
    let map =
        RdsGetMrArgs { vec: RdsIovec { addr: 1, bytes: 2 }, cookie_addr: 3, flags: RdmaFlags::USE_ONCE };
    let dest = RdsGetMrForDestArgs { dest: core::array::from_fn(|at| at as u8), args: map };
    let bytes = dest.encode();
    assert_eq!(bytes[RdsGetMrForDestArgs::DEST_LEN..], map.encode());
    assert_eq!(RdsGetMrForDestArgs::decode(&bytes), Ok(dest));
    let short = Err(CmsgError::Structure { needed: 160, found: 159 });
    assert_eq!(RdsGetMrForDestArgs::decode(&bytes[..159]), short);
    let free = RdsFreeMrArgs { cookie: RdmaCookie(4), flags: RdmaFlags::INVALIDATE };
    assert_eq!(RdsFreeMrArgs::decode(&free.encode()), Ok(free));
    assert_eq!(RdsIovec::decode(&map.encode()), Ok(map.vec));
    for (bytes, error) in [
        (&[][..], CmsgError::Structure { needed: 4, found: 0 }),
        (&[1, 0, 0], CmsgError::Structure { needed: 4, found: 3 }),
        (&[1, 0, 0, 0, 0], CmsgError::Structure { needed: 4, found: 5 }),
        (&[4, 0, 0, 0], CmsgError::Position(4)),
        (&[2, 0, 3, 0], CmsgError::Position(3)),
    ] {
        assert_eq!(RxTraceOption::decode(bytes), Err(error));
    }
}

#[test]
fn addresses_of_both_systems() {
    let v4: SocketAddr = "10.1.2.3:4660".parse().expect("an address");
    let v6: SocketAddr = "[fe80::5%7]:4660".parse().expect("an address");
    for (profile, family) in [(Profile::Linux, 2), (Profile::Solaris, 30)] {
        let (bytes, len) = encode_address(profile, &v4).expect("both have it");
        assert_eq!((u16::from_ne_bytes([bytes[0], bytes[1]]), len), (family, 16));
        assert_eq!(bytes[2..8], [0x12, 0x34, 10, 1, 2, 3]);
        assert_eq!(decode_address(profile, &bytes[..len]), Ok(v4));
        let short = Err(CmsgError::Structure { needed: 16, found: 15 });
        assert_eq!(decode_address(profile, &bytes[..15]), short);
    }
    let (bytes, len) = encode_address(Profile::Linux, &v6).expect("Linux has it");
    assert_eq!(decode_address(Profile::Linux, &bytes[..len]), Ok(v6));
    let short = Err(CmsgError::Structure { needed: 28, found: 27 });
    assert_eq!(decode_address(Profile::Linux, &bytes[..27]), short);
    assert_eq!(encode_address(Profile::Solaris, &v6), None);
    assert_eq!(decode_address(Profile::Solaris, &bytes), Err(CmsgError::Family(10)));
}

fn any_message() -> impl Strategy<Value = Cmsg> {
    let atomic =
        (any::<[u64; 4]>(), 0..4).prop_map(|([compare, swap, compare_mask, swap_mask], kind)| match kind {
            0 => AtomicOp::FetchAdd { add: compare },
            1 => AtomicOp::CompareSwap { compare, swap },
            2 => AtomicOp::MaskedFetchAdd { add: compare, nocarry_mask: swap },
            _ => AtomicOp::MaskedCompareSwap { compare, swap, compare_mask, swap_mask },
        });
    let flags = |bits| RdmaFlags::from_bits_retain(bits);
    prop_oneof![
        any::<([u64; 6], u32)>().prop_map(move |([cookie, addr, bytes, local, nr_local, bits], token)| {
            Cmsg::RdmaArgs(RdsRdmaArgs {
                cookie: RdmaCookie(cookie),
                remote_vec: RdsIovec { addr, bytes },
                local_vec_addr: local,
                nr_local,
                flags: flags(bits),
                user_token: token.into(),
            })
        }),
        any::<u64>().prop_map(|cookie| Cmsg::RdmaDest(RdmaCookie(cookie))),
        any::<[u64; 4]>().prop_map(move |[addr, bytes, cookie_addr, bits]| {
            Cmsg::RdmaMap(RdsGetMrArgs { vec: RdsIovec { addr, bytes }, cookie_addr, flags: flags(bits) })
        }),
        (any::<u32>(), 0..5).prop_map(|(token, status)| {
            let status = RdmaStatus::from_number(status).expect("one of five");
            Cmsg::RdmaStatus(RdmaNotify { user_token: token.into(), status })
        }),
        any::<u64>().prop_map(Cmsg::CongUpdate),
        (any::<[u64; 4]>(), any::<u32>(), atomic).prop_map(
            move |([cookie, local_addr, remote_addr, bits], token, op)| {
                Cmsg::Atomic(RdsAtomicArgs {
                    cookie: RdmaCookie(cookie),
                    local_addr,
                    remote_addr,
                    op,
                    flags: flags(bits),
                    user_token: token.into(),
                })
            }
        ),
        (0u8..=3, [0u8..3, 0u8..3, 0u8..3], any::<[u64; 3]>()).prop_map(|(count, [a, b, c], nanoseconds)| {
            let option = RxTraceOption::decode(&[count, a, b, c]).expect("positions");
            Cmsg::RxpathLatency(RxTrace { option, nanoseconds })
        }),
        any::<u32>().prop_map(Cmsg::ZcopyCookie),
        any::<(u32, [u32; 8])>()
            .prop_map(|(num, cookies)| Cmsg::ZcopyCompletion(ZcopyCookies { num, cookies })),
    ]
}

proptest! {
    /// Every encoded message decodes to itself, on every system.
    #[test]
    fn messages_come_back(messages in prop::collection::vec(any_message(), 0..10), abi in 0usize..4) {
        let abi = ABIS[abi];
        let known: Vec<Cmsg> = messages.into_iter().filter(|message| message.is_of(&abi)).collect();
        let bytes = buffer(abi, &known);
        let read: Result<Vec<Cmsg>, CmsgError> = ControlReader::new(abi, &bytes).collect();
        prop_assert_eq!(read, Ok(known));
    }

    /// Decoding arbitrary or damaged bytes terminates without a panic, and yields at most as many
    /// messages as headers fit.
    #[test]
    fn any_bytes_are_read_or_refused(
        messages in prop::collection::vec(any_message(), 1..6),
        spoilt in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut: prop::sample::Index,
        noise in prop::collection::vec(any::<u8>(), 0..200),
        abi in 0usize..4,
    ) {
        let abi = ABIS[abi];
        let mut bytes = buffer(abi, &messages);
        for (at, byte) in spoilt {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        for bytes in [&bytes, &noise] {
            let most = bytes.len() / abi.header_len();
            let read: Vec<_> = ControlReader::new(abi, bytes).collect();
            prop_assert!(read.len() <= most);
            let errors = read.iter().filter(|message| message.is_err()).count();
            prop_assert!(errors <= 1 && read.iter().take(read.len().saturating_sub(1)).all(Result::is_ok));
            if let Err(error) = SendControl::parse(abi, bytes) {
                prop_assert!(!error.to_string().is_empty());
            }
            let _ = decode_address(Profile::Linux, bytes);
        }
    }
}
