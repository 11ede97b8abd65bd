//! The status table of the project's README, with the tests that prove its ticks.

use std::path::{Path, PathBuf};

/// A row of the table.
struct Row {
    subject: &'static str,
    stack: Cell,
    hca: Cell,
}

/// A cell: its text, and for a tick the tests that prove it, as `FILE::FUNCTION` from the workspace's root.
struct Cell(&'static str, &'static [&'static str]);

const NO: Cell = Cell("–", &[]);
const DATA: &str = "driver-mlx/tests/data_path.rs::datagrams_carry_their_source";
const VERBS: &str = "tests/tests/linux/verbs.rs::linux_6_1_moves_data_by_all_programs";
const ETHERNET: &str =
    "tests/tests/linux/ethernet/mod.rs::the_latest_kernel_uses_an_ethernet_port_beside_rxe";
const OBJECTS: &str = "tests/tests/linux/objects.rs::linux_6_1_uses_every_object";
const PROGRAMS: &str = "tests/tests/linux/programs/mod.rs::programs_of_others_run_on_linux_6_1";
const PYVERBS: &str = "tests/tests/oracle/pyverbs.rs::rdma_cores_own_tests_pass_or_are_skipped";

const ROWS: [Row; 22] = [
    Row {
        subject: "InfiniBand port",
        stack: Cell("✓, no real card yet", &["dat-nostd/tests/ping.rs::the_example_pings"]),
        hca: Cell("✓", &[VERBS]),
    },
    Row {
        subject: "Ethernet port, RoCE",
        stack: Cell(
            "✓, emulated only",
            &[
                "driver-mlx/tests/ethernet.rs::roce_carries_data_over_ipv4_ipv6_and_a_vlan",
                "dat-nostd/tests/roce.rs::both_names_connect_by_roce",
                "dat-nostd/tests/roce.rs::ipv4_addresses_are_found_by_arp",
            ],
        ),
        hca: Cell("✓", &[ETHERNET]),
    },
    Row {
        subject: "RC, UC, UD",
        stack: Cell("✓", &[DATA, "driver-mlx/tests/unreliable.rs::unreliable_connections_send_and_write"]),
        hca: Cell("✓", &[VERBS]),
    },
    Row { subject: "XRC", stack: NO, hca: Cell("✓", &[VERBS, PROGRAMS]) },
    Row { subject: "DC", stack: NO, hca: NO },
    Row {
        subject: "shared receive queues",
        stack: Cell(
            "✓",
            &["tests/tests/in_process/dat/objects/shared.rs::endpoints_of_a_shared_queue_keep_their_order"],
        ),
        hca: Cell("✓", &[VERBS, PYVERBS]),
    },
    Row {
        subject: "64-bit atomics",
        stack: Cell("✓", &["driver-mlx/tests/services.rs::atomics_return_what_was_there_and_change_it"]),
        hca: Cell("✓", &[PROGRAMS, PYVERBS]),
    },
    Row { subject: "masked atomics", stack: NO, hca: NO },
    Row {
        subject: "memory windows, types 1 and 2",
        stack: Cell("✓", &["driver-mlx/tests/windows.rs::a_window_opens_a_part_of_a_region"]),
        hca: Cell("✓", &[OBJECTS, PYVERBS]),
    },
    Row {
        subject: "memory registration by UMR",
        stack: NO,
        hca: Cell(
            "✓",
            &["qemu/hca-model/src/transport/tests/umr.rs::pages_are_registered_used_and_invalidated"],
        ),
    },
    Row {
        subject: "multicast",
        stack: Cell("✓", &["driver-mlx/tests/services.rs::multicast_reaches_the_attached"]),
        hca: Cell("✓", &[PYVERBS, "tests/tests/linux/ip.rs::linux_and_a_unikernel_speak_ip_and_rdma_cm"]),
    },
    Row {
        subject: "CQ resize",
        stack: Cell("✓", &["driver-mlx/tests/resize.rs::a_queue_grows_with_completions_in_it"]),
        hca: Cell("✓", &[OBJECTS]),
    },
    Row {
        subject: "recovery after a fatal error",
        stack: Cell("✓", &["driver-mlx/tests/recovery.rs::traffic_flows_again_over_the_same_memory"]),
        hca: Cell("✓", &["tests/tests/linux/probe.rs::linux_6_1_probes_and_removes"]),
    },
    Row {
        subject: "ConnectX-4 to 7, virtual function",
        stack: Cell(
            "✓, emulated only",
            &["driver-mlx/tests/cards.rs::every_kind_of_card_comes_up_and_recovers"],
        ),
        hca: Cell("✓", &["tests/tests/linux/cards.rs::linux_6_1_probes_every_card"]),
    },
    Row { subject: "creating VFs (SR-IOV)", stack: NO, hca: NO },
    Row { subject: "on-demand paging, signatures", stack: NO, hca: NO },
    Row {
        subject: "subnet manager and administrator",
        stack: Cell("client", &[]),
        hca: Cell(
            "✓",
            &[
                "qemu/fabric/src/infiniband/tests/administration.rs::paths_keep_to_partitions",
                "tests/tests/oracle/opensm.rs::opensm_stands_by_where_the_fabric_manages_itself",
            ],
        ),
    },
    Row {
        subject: "IPoIB, datagram mode",
        stack: Cell(
            "✓",
            &["tests/tests/boot/apps.rs::ip_hosts_ping_each_other_and_move_16_mib_by_tcp_both_ways"],
        ),
        hca: Cell("✓", &["tests/tests/linux/ip.rs::linux_and_a_unikernel_speak_ip_and_rdma_cm"]),
    },
    Row { subject: "IPoIB, connected mode", stack: NO, hca: Cell("tried by hand", &[]) },
    Row {
        subject: "DAT 1.2",
        stack: Cell(
            "✓, all 72 functions",
            &["dat-nostd/tests/errors/readme.rs::every_function_has_rows_and_a_success"],
        ),
        hca: NO,
    },
    Row {
        subject: "RDS wire protocol 3.1",
        stack: Cell(
            "✓",
            &["tests/tests/linux/rds/messages.rs::messages_of_all_sizes_arrive_once_and_in_order"],
        ),
        hca: NO,
    },
    Row {
        subject: "Linux 6.1, 6.12, 7.x guests",
        stack: Cell(
            "✓, as peers",
            &["tests/tests/linux/unikernel.rs::linux_and_a_unikernel_move_data_both_ways"],
        ),
        hca: Cell(
            "✓",
            &[
                "tests/tests/linux/cards.rs::linux_6_1_probes_every_card",
                "tests/tests/linux/objects.rs::linux_6_12_uses_every_object",
                "tests/tests/linux/cards.rs::trixie_backports_kernel_probes_every_card",
            ],
        ),
    },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

#[test]
fn readme_has_at_most_a_thousand_words() {
    let text = std::fs::read_to_string(root().join("README.md")).expect("the README");
    let words = text.split_whitespace().count();
    assert!(words <= 1000, "{words} words");
}

#[test]
fn status_table_equals_the_rows() {
    let rows: Vec<String> = ROWS
        .iter()
        .map(|Row { subject, stack, hca }| format!("| {subject} | {} | {} |", stack.0, hca.0))
        .collect();
    harness::readme::judge(root().join("README.md"), "status", &["", "stack", "emulated HCA"], &rows);
}

/// Whether the source defines a test of this name: an attribute `test` in the lines right before the function.
fn has_test(source: &str, function: &str) -> bool {
    let wanted = format!("fn {function}()");
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
        line.starts_with(&wanted) && attributes.clone().any(|line| *line == "#[test]")
    })
}

#[test]
fn each_tick_has_tests() {
    for Row { subject, stack, hca } in &ROWS {
        for Cell(text, tests) in [stack, hca] {
            assert_eq!(text.starts_with('✓'), !tests.is_empty(), "{subject}: {text}");
            assert!(text.split_whitespace().count() <= 6, "{subject}: {text}");
            for test in *tests {
                let (file, function) = test.split_once("::").expect("a file and a function");
                let source = std::fs::read_to_string(root().join(file));
                let source = source.unwrap_or_else(|error| panic!("{subject}: {file}: {error}"));
                assert!(has_test(&source, function), "{subject}: no test {function} in {file}");
            }
        }
    }
    assert!(!has_test("#[test]\nfn other() {}\nfn wanted() {}", "wanted"));
}
