//! rds(3SOCKET), clause by clause, as the README of `rds-nostd` has it: what conforms, what is refused as the page allows, what is missing,
//! each with the test that asserts it.

mod clauses;

use std::collections::BTreeSet;
use std::process::Command;

/// How a clause is met.
enum Verdict {
    /// As the page says.
    Conforming,
    /// As the page says, because there is less to it here.
    Conditional(&'static str),
    /// Less than the page says, told by an error.
    Refused(&'static str),
}

use Verdict::{Conditional, Conforming, Refused};

/// Part of the page, clause, how it is met, tests.
type Row = (&'static str, &'static str, Verdict, &'static [&'static str]);

const ROWS: &[Row] = &[
    (
        "socket",
        "AF_INET_OFFLOAD, SOCK_SEQPACKET, protocol 0",
        Conforming,
        &["socket::sockets_are_those_of_a_profile"],
    ),
    (
        "socket",
        "no local address; bind comes before sending and receiving",
        Conforming,
        &["page::clauses::an_unbound_socket_neither_sends_nor_receives"],
    ),
    ("bind", "one address for a socket, once", Conforming, &["features::options_read_back_what_was_set"]),
    (
        "bind",
        "one socket for an address and port",
        Conforming,
        &["messages::loopback_truncation_and_addresses"],
    ),
    (
        "bind",
        "without a port, one is chosen at random",
        Conforming,
        &["page::clauses::ports_are_chosen_at_random"],
    ),
    (
        "bind",
        "to a loopback address or one of an RDS interface",
        Conforming,
        &[
            "messages::loopback_truncation_and_addresses",
            "features::loopback_addresses_reach_each_other_alone",
        ],
    ),
    (
        "addresses",
        "unicast and loopback, by IPv4",
        Conforming,
        &[
            "messages::datagrams_arrive_once_in_order_and_whole",
            "features::loopback_addresses_reach_each_other_alone",
        ],
    ),
    (
        "addresses",
        "no broadcast, no INADDR_ANY, no multicast",
        Conforming,
        &["connections::refusals", "features::options_read_back_what_was_set"],
    ),
    (
        "addresses",
        "sockaddr_in with sin_family AF_INET_OFFLOAD",
        Conforming,
        &[
            "layouts::control_messages_are_laid_out_as_c_does",
            "layouts::what_a_program_gives_is_understood_or_refused",
        ],
    ),
    (
        "sendmsg",
        "a message is not longer than 4 GiB",
        Refused("EMSGSIZE above 1 MiB, or what the frames hold, as on Linux and illumos"),
        &["socket::buffers_are_what_each_system_says"],
    ),
    ("sendmsg", "no out-of-band data", Conforming, &["socket::flags_of_calls"]),
    (
        "sendmsg",
        "a message stays in the send queue until the destination has acknowledged it",
        Conforming,
        &[
            "messages::a_full_send_buffer_is_told_and_empties_when_the_peer_is_there",
            "info::everything_is_listed",
        ],
    ),
    (
        "sendmsg",
        "EAGAIN if the destination has no room",
        Conforming,
        &["page::clauses::a_destination_without_room_says_eagain"],
    ),
    (
        "delivery",
        "what was accepted becomes visible while the destination's socket is open",
        Conforming,
        &["connections::broken_connections_lose_and_double_nothing", "chaos::messages_survive_chaos"],
    ),
    (
        "delivery",
        "silently dropped where nobody is bound",
        Conforming,
        &["messages::what_nobody_is_bound_to_is_dropped_and_counted"],
    ),
    (
        "delivery",
        "in order from one socket to one destination",
        Conforming,
        &[
            "messages::datagrams_arrive_once_in_order_and_whole",
            "connections::broken_connections_lose_and_double_nothing",
        ],
    ),
    ("delivery", "in any order between other pairs", Conforming, &["chaos::messages_survive_chaos"]),
    ("buffers", "SO_SNDBUF and SO_RCVBUF", Conforming, &["socket::buffers_are_what_each_system_says"]),
    (
        "poll",
        "POLLIN while a message waits",
        Conforming,
        &["page::clauses::pollin_says_that_a_message_waits"],
    ),
    (
        "poll",
        "POLLOUT always",
        Conforming,
        &[
            "page::clauses::a_destination_without_room_says_eagain",
            "socket::buffers_are_what_each_system_says",
        ],
    ),
    (
        "ioctl",
        "SIOCGIFCONF (O_SIOCGIFCONF), SIOCGIFNUM, SIOCGIFMTU, SIOCGIFFLAGS: what they tell",
        Conforming,
        &["socket::interfaces_are_loopback_and_the_port"],
    ),
    ("ioctl", "TI_GETMYNAME", Conforming, &["page::clauses::an_unbound_socket_neither_sends_nor_receives"]),
    (
        "ioctl",
        "the structures that they fill (`ifconf`, `ifreq`)",
        Conditional("`cmsg::encode_ifreq` fills one; a layer of C lists them, as `librds` does"),
        &["layouts::control_messages_are_laid_out_as_c_does"],
    ),
    ("close", "pending messages are freed", Conforming, &["connections::closing_with_messages_under_way"]),
    (
        "RDMA",
        "RDS_CMSG_RDMA_MAP: memory is offered with a message",
        Conforming,
        &[
            "features::reads_and_writes_by_cookie_at_odd_places",
            "isolation::a_key_is_of_no_use_to_another_peer",
        ],
    ),
    (
        "RDMA",
        "the cookie is stored where the program wants it",
        Conditional("`sendmsg` and `get_mr` give it by value; a layer of C stores it at `cookie_addr`"),
        &["layouts::what_a_program_gives_is_understood_or_refused"],
    ),
    (
        "RDMA",
        "RDS_CMSG_RDMA_DEST: a cookie that is there goes with a message",
        Conforming,
        &["isolation::memory_is_offered_for_a_destination_only"],
    ),
    (
        "RDMA",
        "the receiver gets the cookie by RDS_CMSG_RDMA_DEST",
        Conforming,
        &["page::clauses::a_cookie_comes_beside_its_message"],
    ),
    (
        "RDMA",
        "RDS_CMSG_RDMA_ARGS: the transfer that goes with a message",
        Conforming,
        &[
            "features::reads_and_writes_by_cookie_at_odd_places",
            "rdma::every_length_with_every_flag_and_each_failure",
        ],
    ),
    (
        "RDMA",
        "recvmsg gives a message, or an empty one with one or more RDS_CMSG_RDMA_STATUS",
        Conforming,
        &["page::clauses::statuses_come_alone_and_several_at_once"],
    ),
    (
        "RDMA",
        "structures, sizes and numbers of the page",
        Conforming,
        &["layouts::control_messages_are_laid_out_as_c_does"],
    ),
    (
        "RDMA",
        "a cookie has the R_Key and the offset",
        Conforming,
        &["hostile::memory::the_bytes_that_were_offered_and_no_other"],
    ),
    (
        "options",
        "RDS_GET_MR works as MAP does",
        Conditional(
            "without `isolate_peers` (librds: with `RDS_SHARED_KEYS=1`); else refused as on Linux, because it names no peer",
        ),
        &[
            "features::what_is_not_offered_is_not_touched",
            "hostile::memory::the_bytes_that_were_offered_and_no_other",
        ],
    ),
    (
        "options",
        "RDS_FREE_MR releases",
        Conforming,
        &["features::what_is_not_offered_is_not_touched", "hostile::memory::no_longer_than_it_is_offered"],
    ),
    (
        "options",
        "RDS_RECVERR: set and queried, off at first",
        Conforming,
        &["features::options_read_back_what_was_set"],
    ),
    (
        "options",
        "RDS_RECVERR: failures are told that nobody asked for",
        Conforming,
        &["features::what_is_not_offered_is_not_touched", "socket::silence_and_errors_of_operations"],
    ),
    (
        "MAP, GET_MR",
        "memory of the program's own, wherever it is",
        Conforming,
        &["registered::memory_of_the_programs_own"],
    ),
    (
        "MAP, GET_MR",
        "USE_ONCE: gone when the operation is acknowledged",
        Conforming,
        &["features::a_region_for_one_use_is_gone_after_it"],
    ),
    (
        "MAP, GET_MR",
        "otherwise the program releases it",
        Conforming,
        &["hostile::memory::no_longer_than_it_is_offered"],
    ),
    (
        "MAP, GET_MR",
        "INVALIDATE: access ends with the release",
        Conditional("as after each release in `librds`; here cookie 0 says when access has ended"),
        &["features::a_region_for_one_use_is_gone_after_it", "hostile::memory::no_longer_than_it_is_offered"],
    ),
    (
        "MAP, GET_MR",
        "without it, access may last for a while",
        Conditional("to part of registered memory, until the HCA comes to it"),
        &["hostile::memory::no_longer_than_it_is_offered"],
    ),
    (
        "ARGS",
        "local memory as an array of rds_iovec",
        Refused("EMSGSIZE above 512 segments"),
        &["features::many_pieces_are_gathered_and_scattered", "registered::five_hundred_and_twelve_pieces"],
    ),
    (
        "ARGS",
        "remote_vec.addr is an offset into the region",
        Conforming,
        &["features::reads_and_writes_by_cookie_at_odd_places"],
    ),
    (
        "ARGS",
        "the remote length matches the local one",
        Conforming,
        &["page::clauses::lengths_of_both_sides_match"],
    ),
    (
        "ARGS",
        "READWRITE writes the client's memory, without it is read",
        Conforming,
        &["features::reads_and_writes_by_cookie_at_odd_places"],
    ),
    (
        "ARGS",
        "FENCE: the message waits for a read",
        Conforming,
        &[
            "features::reads_and_writes_by_cookie_at_odd_places",
            "rdma::every_length_with_every_flag_and_each_failure",
        ],
    ),
    (
        "ARGS",
        "to sockets of the same node",
        Conditional("but for loopback addresses (EOPNOTSUPP), as on Linux"),
        &["within::reads_and_writes", "within::what_is_not_offered_is_not_touched"],
    ),
    (
        "STATUS",
        "none unless asked for",
        Conforming,
        &[
            "page::clauses::statuses_come_alone_and_several_at_once",
            "socket::silence_and_errors_of_operations",
        ],
    ),
    (
        "STATUS",
        "NOTIFY_ME: how the operation ended, with its token",
        Conforming,
        &["features::reads_and_writes_by_cookie_at_odd_places"],
    ),
    (
        "STATUS",
        "at most one for each operation",
        Conforming,
        &["page::clauses::statuses_come_alone_and_several_at_once"],
    ),
    ("STATUS", "SUCCESS, REMOTE_ERROR", Conforming, &["features::what_is_not_offered_is_not_touched"]),
    (
        "STATUS",
        "CANCELED, which the page does not have yet",
        Conforming,
        &["features::what_is_cancelled_touches_no_memory_any_more"],
    ),
    (
        "STATUS",
        "DROPPED, OTHER_ERROR: the connection broke",
        Conforming,
        &["page::clauses::an_operation_that_is_cut_off_is_told"],
    ),
    ("FREE_MR", "a cookie that is not there", Conforming, &["features::what_is_not_offered_is_not_touched"]),
    (
        "FREE_MR",
        "cookie 0 with INVALIDATE: all that was released is revoked",
        Conforming,
        &["page::clauses::cookie_0_ends_nothing_that_is_in_use", "chaos::messages_survive_chaos"],
    ),
    (
        "errors",
        "EAFNOSUPPORT, EPFNOSUPPORT, EPROTOTYPE, EPROTONOSUPPORT, EMFILE",
        Conforming,
        &["socket::sockets_are_those_of_a_profile"],
    ),
    ("errors", "ENODEV: no hardware", Conforming, &["page::clauses::without_hardware_there_is_no_socket"]),
    (
        "errors",
        "EACCES, ENOMEM",
        Conditional(
            "cannot occur: nobody is denied a socket, and none takes memory that was not there before",
        ),
        &["socket::sockets_are_those_of_a_profile"],
    ),
    (
        "attributes",
        "MT-Level Safe",
        Conditional("a node is owned by one thread (`&mut`); a layer of C locks it"),
        &["layouts::what_a_program_gives_is_understood_or_refused"],
    ),
];

fn line((part, clause, verdict, tests): &Row) -> String {
    let verdict = match verdict {
        Conforming => "conforming".to_owned(),
        Conditional(how) => format!("conforming: {how}"),
        Refused(how) => format!("refused: {how}"),
    };
    let tests: Vec<String> = tests.iter().map(|test| format!("`{test}`")).collect();
    format!("| {part} | {clause} | {verdict} | {} |", tests.join(", "))
}

#[test]
fn the_readme_says_what_is_tested() {
    let rows: Vec<String> = ROWS.iter().map(line).collect();
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../rds-nostd/README.md");
    harness::readme::judge(readme, "page", &["part", "clause", "here", "asserted by"], &rows);
}

/// Every test that a row names is there, and every row names one.
#[test]
fn every_clause_has_its_test() {
    let own = std::env::current_exe().expect("a path");
    let listed = Command::new(own).arg("--list").output().expect("starts");
    let listed = String::from_utf8(listed.stdout).expect("text");
    let tests: BTreeSet<&str> =
        listed.lines().filter_map(|line| line.strip_prefix("rds::")?.strip_suffix(": test")).collect();
    let mut seen = BTreeSet::new();
    for row in ROWS {
        let (part, clause, _, named) = row;
        assert!(seen.insert((part, clause)), "{part}: {clause}: twice");
        assert!(!named.is_empty(), "{part}: {clause}");
        for test in *named {
            assert!(tests.contains(test), "{part}: {clause}: there is no test {test}");
        }
    }
    for test in tests.iter().filter(|test| test.starts_with("page::clauses::")) {
        assert!(ROWS.iter().any(|(.., named)| named.contains(test)), "no row names {test}");
    }
}
