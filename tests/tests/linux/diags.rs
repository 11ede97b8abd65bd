//! What rdma-core's and infiniband-diags' programs show of emulated HCAs and their fabric.

use crate::guests::{
    census_without_keys, guid, hcas_are_content, kernels_are_content, remove_drivers, run, value,
};
use hca_model::Profile;
use rdma_lab::linux::{Kernel, Kind, Lab, Options};
use runner::linux::judge;

/// HCAs of the guest.
const HCAS: usize = 2;

fn lines(lab: &mut Lab, script: &str) -> Vec<String> {
    run(lab, 0, script).lines
}

/// The number behind `name:`, decimal or hexadecimal.
fn number(lines: &[String], name: &str) -> u64 {
    let text = value(lines, name);
    let word = text.split_whitespace().next().unwrap_or_default();
    let parsed = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{name}: {text}"))
}

/// `ibv_devinfo -v` of one HCA; answers its port's LID.
fn device_information(lab: &mut Lab, device: usize) -> u64 {
    let shown = lines(lab, &format!("ibv_devinfo -v -d mlx5_{device}"));
    let profile = Profile::node(device as u16);
    for (name, expected) in [
        ("transport", "InfiniBand (0)"),
        ("node_guid", &guid(profile.node_guid)),
        ("sys_image_guid", &guid(profile.system_image_guid)),
        ("vendor_id", "0x02c9"),
        ("vendor_part_id", "4119"),
        ("board_id", &profile.psid),
        ("phys_port_cnt", "1"),
        ("state", "PORT_ACTIVE (4)"),
        ("phys_state", "LINK_UP (5)"),
        ("link_layer", "InfiniBand"),
        ("max_mtu", "4096 (5)"),
        ("active_mtu", "4096 (5)"),
        ("atomic_cap", "ATOMIC_HCA (1)"),
        ("GID[  0]", &format!("fe80:0000:0000:0000:{}", guid(profile.port_guid))),
    ] {
        assert_eq!(value(&shown, name), expected, "{name} of mlx5_{device}");
    }
    // As a ConnectX-5 has them, at least.
    for (name, least, most) in [
        ("max_qp", 1 << 16, 1 << 18),
        ("max_qp_wr", 8192, 32_768),
        ("max_sge", 30, 32),
        ("max_cq", 1 << 14, 1 << 24),
        ("max_cqe", (1 << 22) - 1, 1 << 22),
        ("max_mr", 1 << 16, 1 << 24),
        ("max_pd", 1 << 10, 1 << 24),
        ("max_mw", 1 << 16, 1 << 24),
        ("max_qp_rd_atom", 16, 16),
        ("max_qp_init_rd_atom", 16, 16),
        ("max_srq", 1 << 10, 1 << 24),
        ("max_srq_wr", (1 << 15) - 1, 1 << 15),
        ("max_mcast_grp", 1 << 10, 1 << 21),
        ("max_pkeys", 128, 128),
        ("pkey_tbl_len", 128, 128),
        ("gid_tbl_len", 8, 8),
        ("max_msg_sz", 1 << 30, 1 << 30),
        ("sm_lid", 1, 0xbfff),
        ("port_lid", 1, 0xbfff),
    ] {
        let found = number(&shown, name);
        assert!(
            (least..=most).contains(&found),
            "{name} of mlx5_{device}: {found} is not in {least}..={most}"
        );
    }
    for flag in
        ["BAD_PKEY_CNTR", "PORT_ACTIVE_EVENT", "RC_RNR_NAK_GEN", "MEM_WINDOW", "XRC", "MEM_MGT_EXTENSIONS"]
    {
        assert!(shown.iter().any(|line| line.trim() == flag), "mlx5_{device} has no {flag}: {shown:#?}");
    }
    number(&shown, "port_lid")
}

/// Everything `ibstat` says about a port is what the model's profile has.
fn state(lab: &mut Lab, device: usize, lid: u64) {
    let shown = lines(lab, &format!("ibstat mlx5_{device}"));
    let profile = Profile::node(device as u16);
    for (name, expected) in [
        ("CA type", "MT4119".to_owned()),
        ("Number of ports", "1".to_owned()),
        ("Node GUID", format!("{:#018x}", profile.node_guid)),
        ("State", "Active".to_owned()),
        ("Physical state", "LinkUp".to_owned()),
        ("Rate", "100".to_owned()),
        ("Base lid", lid.to_string()),
        ("LMC", "0".to_owned()),
        ("Port GUID", format!("{:#018x}", profile.port_guid)),
        ("Link layer", "InfiniBand".to_owned()),
    ] {
        assert_eq!(value(&shown, name), expected, "{name} of mlx5_{device}");
    }
}

/// The values of `name` in a listing of records, as `saquery` prints them: name, dots, value.
fn dotted<'a>(lines: &'a [String], name: &str) -> Vec<&'a str> {
    lines
        .iter()
        .filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('.'))
        .map(|rest| rest.trim_start_matches('.').trim())
        .collect()
}

/// What the subnet administrator knows: nodes, ports, paths, groups.
fn administrator(lab: &mut Lab, lids: &[u64]) {
    let nodes = lines(lab, "saquery -N");
    let types = dotted(&nodes, "node_type");
    assert_eq!(types.iter().filter(|kind| kind.contains("Channel Adapter")).count(), HCAS, "{nodes:#?}");
    assert_eq!(types.iter().filter(|kind| kind.contains("Switch")).count(), 1, "{nodes:#?}");
    for device in 0..HCAS {
        let guid = format!("{:#018x}", Profile::node(device as u16).port_guid);
        assert!(dotted(&nodes, "port_guid").contains(&guid.as_str()), "{guid} is not in {nodes:#?}");
    }

    let ports = lines(lab, "saquery PIR");
    for lid in lids {
        let shown = dotted(&ports, "EndPortLid");
        let decimal = lid.to_string();
        let hexadecimal = format!("{lid:#x}");
        assert!(
            shown.iter().any(|text| *text == decimal || text.eq_ignore_ascii_case(&hexadecimal)),
            "{lid} is not in {ports:#?}"
        );
    }

    let paths = lines(lab, &format!("saquery -p --src-to-dst {}:{}", lids[0], lids[1]));
    assert_eq!(dotted(&paths, "slid"), [lids[0].to_string()], "{paths:#?}");
    assert_eq!(dotted(&paths, "dlid"), [lids[1].to_string()], "{paths:#?}");

    // The broadcast group of IPoIB is there before anybody joins it.
    let groups = lines(lab, "saquery -g").join("\n").to_lowercase();
    assert!(groups.contains("ff12:401b:ffff::ffff:ffff"), "{groups}");
    lines(lab, "saquery CPI");
    lines(lab, "saquery -s");
}

/// The counters of a port, read by general management packets, follow what was sent.
fn counters(lab: &mut Lab, lids: &[u64]) {
    let read = |lab: &mut Lab, lid: u64| {
        let shown = lines(lab, &format!("perfquery -x {lid} 1"));
        ["PortXmitPkts", "PortRcvPkts", "PortXmitData", "PortRcvData"].map(|name| {
            let found = dotted(&shown, &format!("{name}:")).first().and_then(|text| text.parse::<u64>().ok());
            found.unwrap_or_else(|| panic!("no {name} in {shown:#?}"))
        })
    };
    let before = [read(lab, lids[0]), read(lab, lids[1])];
    let (size, iterations) = (4096_u64, 200_u64);
    let line = format!("ibv_rc_pingpong -s {size} -n {iterations} -m 4096");
    run(lab, 0, &format!("background server {line} -d mlx5_0 && listening server 18515"));
    run(lab, 0, &format!("{line} -d mlx5_1 127.0.0.1 && reap server"));
    let after = [read(lab, lids[0]), read(lab, lids[1])];
    for (port, (before, after)) in before.iter().zip(&after).enumerate() {
        let grown: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        // Data is counted in words of four bytes.
        assert!(grown[0] >= iterations && grown[1] >= iterations, "port {port}: packets {grown:?}");
        let words = iterations * size / 4;
        assert!(grown[2] >= words && grown[3] >= words, "port {port}: words {grown:?}, at least {words}");
        assert!(
            grown[2] < 2 * words && grown[3] < 2 * words,
            "port {port}: words {grown:?}, below {}",
            2 * words
        );
    }
    lines(lab, &format!("perfquery {}", lids[1]));
    lines(lab, &format!("perfquery -R {}", lids[1]));
    let [packets, ..] = read(lab, lids[1]);
    assert!(packets < iterations, "the counters begin anew: {packets}");
}

/// What walks the fabric by directed routes: both HCAs behind one switch.
fn topology(lab: &mut Lab, lids: &[u64]) {
    let shown = lines(lab, "ibnetdiscover");
    let count = |kind: &str| shown.iter().filter(|line| line.starts_with(kind)).count();
    assert_eq!((count("Switch"), count("Ca")), (1, HCAS), "{shown:#?}");
    let links = lines(lab, "iblinkinfo");
    assert!(links.iter().filter(|line| line.contains("Active/  LinkUp")).count() >= HCAS, "{links:#?}");
    let node = lines(lab, &format!("smpquery nodeinfo {}", lids[1]));
    let guid = format!("{:#018x}", Profile::node(1).node_guid);
    assert_eq!(dotted(&node, "Guid:"), [guid.as_str()], "{node:#?}");
    let route = lines(lab, &format!("ibtracert {} {}", lids[0], lids[1]));
    assert!(route.iter().any(|line| line.contains("switch")), "{route:#?}");
}

fn diagnose(kernel: Kernel) {
    let kind = Kind { hcas: vec![Default::default(); HCAS], ..kernel.into() };
    let Some(mut lab) = judge::lab_or_skip(Options::new(kind, 1)) else { return };
    println!("Linux {}", lab.version());
    run(&mut lab, 0, "dmesg -c > /dev/null; hcas-up");
    let before = census_without_keys(&lab);
    let lids: Vec<u64> = (0..HCAS).map(|device| device_information(&mut lab, device)).collect();
    assert_ne!(lids[0], lids[1], "each port has a LID of its own");
    for (device, lid) in lids.iter().enumerate() {
        state(&mut lab, device, *lid);
    }
    let manager = lines(&mut lab, "sminfo").join("\n");
    assert!(manager.contains("SMINFO_MASTER"), "{manager}");
    administrator(&mut lab, &lids);
    counters(&mut lab, &lids);
    topology(&mut lab, &lids);
    assert_eq!(census_without_keys(&lab), before, "objects before and after the programs");
    remove_drivers(&mut lab);
    kernels_are_content(&mut lab, 1);
    hcas_are_content(&lab);
    lab.stop().expect("it powers off");
}

#[test]
fn programs_show_what_the_hcas_and_their_fabric_are() {
    for kernel in judge::kernels() {
        diagnose(*kernel);
    }
}
