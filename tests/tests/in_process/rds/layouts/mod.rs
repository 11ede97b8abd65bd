//! Control messages, structures and addresses against those that a C compiler makes of `<linux/rds.h>` and of what rds(3SOCKET) and
//! illumos declare, byte for byte.

use rds_nostd::cmsg::{
    Abi, Cmsg, ControlWriter, InterfaceField, RdsAtomicArgs, RdsFreeMrArgs, RdsGetMrArgs,
    RdsGetMrForDestArgs, RdsIovec, RdsRdmaArgs, RxTraceOption, SendControl, ZcopyCookies, decode_address,
    encode_address, encode_ifreq, named_interface,
};
use rds_nostd::{AtomicOp, Interface, InterfaceFlags, RdmaCookie, RdmaFlags, RdmaNotify, RdmaStatus};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

const WORD: u64 = 0x0000_0100_0000_0300;
const MAP: RdsGetMrArgs = RdsGetMrArgs {
    vec: RdsIovec { addr: 0x11, bytes: 0x22 },
    cookie_addr: 0x33,
    flags: RdmaFlags::USE_ONCE.union(RdmaFlags::INVALIDATE),
};

const INTERFACES: [Interface; 2] = [
    Interface {
        name: "lo0",
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        mtu: 8232,
        flags: InterfaceFlags::UP
            .union(InterfaceFlags::LOOPBACK)
            .union(InterfaceFlags::RUNNING)
            .union(InterfaceFlags::MULTICAST)
            .union(InterfaceFlags::IPV4),
    },
    Interface {
        name: "ib0",
        address: IpAddr::V4(Ipv4Addr::new(10, 2, 3, 4)),
        mtu: 2044,
        flags: InterfaceFlags::UP,
    },
];

/// What the program prints when it is compiled for a system: bytes by name. None where there is no compiler, or no such header.
fn compiled(system: &str) -> Option<BTreeMap<String, String>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/in_process/rds/layouts/layouts.c");
    let program = std::env::temp_dir().join(format!("rds-layouts-{system}-{}", std::process::id()));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let made = Command::new(compiler)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .arg(format!("-DSYSTEM_{system}"))
        .output();
    let refusal = match &made {
        Ok(made) if made.status.success() => None,
        Ok(made) => Some(String::from_utf8_lossy(&made.stderr).into_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(refusal) = refusal {
        assert!(!runner::conditions::required(), "{refusal}");
        println!("SKIPPED: no C compiler with Linux's headers: {refusal}");
        return None;
    }
    let output = Command::new(&program).output().expect("the program starts");
    std::fs::remove_file(&program).expect("the program goes");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    Some(lines.map(|(name, bytes)| (name.to_owned(), bytes.to_owned())).collect())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A buffer with one control message.
fn message(abi: Abi, message: &Cmsg) -> String {
    let mut bytes = [0; 256];
    let mut writer = ControlWriter::new(abi, &mut bytes);
    assert!(writer.push(message));
    let (len, _) = writer.finish();
    hex(&bytes[..len])
}

/// The names that are the same everywhere.
fn of_all(abi: Abi) -> Vec<(&'static str, String)> {
    let args = RdsRdmaArgs {
        cookie: RdmaCookie(WORD),
        remote_vec: RdsIovec { addr: 0x1111, bytes: 0x2222 },
        local_vec_addr: 0x3333,
        nr_local: 0x44,
        flags: RdmaFlags::READWRITE | RdmaFlags::NOTIFY_ME,
        user_token: 0x5566_7788,
    };
    let notify = RdmaNotify { user_token: 0x5566_7788, status: RdmaStatus::Dropped };
    let free = RdsFreeMrArgs { cookie: RdmaCookie(WORD), flags: RdmaFlags::INVALIDATE };
    let address = "10.2.3.4:4660".parse().expect("an address");
    let (address, len) = encode_address(abi.profile(), &address).expect("all have it");
    let ifreq = |interface: &Interface, field| {
        let bytes = encode_ifreq(abi.profile(), interface, field).expect("an address of IPv4");
        let bytes = &bytes[..abi.profile().ifreq_len()];
        assert_eq!(named_interface(abi.profile(), &INTERFACES, bytes), Some(interface));
        hex(bytes)
    };
    let [loopback, infiniband] = &INTERFACES;
    vec![
        ("args", message(abi, &Cmsg::RdmaArgs(args))),
        ("dest", message(abi, &Cmsg::RdmaDest(RdmaCookie(WORD)))),
        ("map", message(abi, &Cmsg::RdmaMap(MAP))),
        ("get_mr", hex(&MAP.encode())),
        ("status", message(abi, &Cmsg::RdmaStatus(notify))),
        ("cong_update", message(abi, &Cmsg::CongUpdate(WORD))),
        ("free_mr", hex(&free.encode())),
        ("address", hex(&address[..len])),
        ("ifreq_address", ifreq(infiniband, InterfaceField::Address)),
        ("ifreq_flags", ifreq(loopback, InterfaceField::Flags)),
        ("ifreq_mtu", ifreq(infiniband, InterfaceField::Mtu)),
    ]
}

fn of_linux() -> Vec<(&'static str, String)> {
    let abi = Abi::LINUX;
    let atomic = |op| {
        let flags = RdmaFlags::NOTIFY_ME | RdmaFlags::SILENT;
        let (local_addr, remote_addr, user_token) = (0x1111, 0x2222, 0x99);
        let cookie = RdmaCookie(WORD);
        message(abi, &Cmsg::Atomic(RdsAtomicArgs { cookie, local_addr, remote_addr, op, flags, user_token }))
    };
    let (compare, swap, compare_mask, swap_mask) = (0x61, 0x62, 0x63, 0x64);
    let option = RxTraceOption::decode(&[2, 2, 1, 0]).expect("positions");
    let trace = option.trace([0x1000, 0x1001, 0x1002]);
    let cookies = ZcopyCookies { num: 2, cookies: [5, 6, 0, 0, 0, 0, 0, 0] };
    let v4 = "10.2.3.4:4660".parse().expect("an address");
    let (v4, len) = encode_address(abi.profile(), &v4).expect("Linux has it");
    let mut for_dest = RdsGetMrForDestArgs { dest: [0; 128], args: MAP };
    for_dest.dest[..len].copy_from_slice(&v4[..len]);
    let v6 = "[fe80::5%7]:4660".parse().expect("an address");
    let (v6, len) = encode_address(abi.profile(), &v6).expect("Linux has it");
    vec![
        ("fadd", atomic(AtomicOp::FetchAdd { add: 0x31 })),
        ("cswp", atomic(AtomicOp::CompareSwap { compare: 0x41, swap: 0x42 })),
        ("masked_fadd", atomic(AtomicOp::MaskedFetchAdd { add: 0x51, nocarry_mask: 0x52 })),
        ("masked_cswp", atomic(AtomicOp::MaskedCompareSwap { compare, swap, compare_mask, swap_mask })),
        ("rx_trace_option", hex(&option.encode())),
        ("rxpath_latency", message(abi, &Cmsg::RxpathLatency(trace))),
        ("zcopy_cookie", message(abi, &Cmsg::ZcopyCookie(77))),
        ("zcopy_completion", message(abi, &Cmsg::ZcopyCompletion(cookies))),
        ("get_mr_for_dest", hex(&for_dest.encode())),
        ("address6", hex(&v6[..len])),
    ]
}

#[test]
fn control_messages_are_laid_out_as_c_does() {
    for (system, abi) in [("LINUX", Abi::LINUX), ("ILLUMOS", Abi::ILLUMOS), ("SOLARIS", Abi::SOLARIS)] {
        let Some(mut compiled) = compiled(system) else { continue };
        let more = if abi == Abi::LINUX { of_linux() } else { Vec::new() };
        for (name, ours) in of_all(abi).into_iter().chain(more) {
            assert_eq!(compiled.remove(name).as_ref(), Some(&ours), "{system}: {name}");
        }
        assert!(compiled.is_empty(), "{system}: nobody compares {compiled:?}");
    }
}

/// The way of a layer of C: what a program gave to `sendmsg` becomes what this crate sends, a refusal has the number that the program
/// knows, and an address is the program's.
#[test]
fn what_a_program_gives_is_understood_or_refused() {
    for abi in [Abi::LINUX, Abi::LINUX_MUSL, Abi::ILLUMOS, Abi::SOLARIS] {
        let mut bytes = [0; 256];
        let mut writer = ControlWriter::new(abi, &mut bytes);
        assert!(writer.push(&Cmsg::RdmaMap(MAP)));
        let (len, _) = writer.finish();
        let control = SendControl::parse(abi, &bytes[..len]).expect("one offer");
        assert_eq!(control, SendControl { map: Some(MAP), ..SendControl::default() });
        let error = SendControl::parse(abi, &bytes[..len - 1]).expect_err("cut");
        assert_eq!(rds_nostd::RdsError::from(error).errno_for(abi.profile()), 22);
        let error = decode_address(abi.profile(), &[0; 16]).expect_err("no family");
        assert_eq!(rds_nostd::RdsError::from(error).errno_for(abi.profile()), 22);
    }
}
