//! What the tests with Linux guests share: scripts that have to succeed, programs in pairs, kernels without complaints.
//!
//! Where QEMU or Debian packages cannot be had the tests say SKIPPED; `MLX5_TESTS_REQUIRE=1` makes that a failure.

use hca_model::Census;
use rdma_lab::linux::{Answer, KernelMessage, Lab};
use runner::linux::judge;
use std::time::Duration;

/// The longest that one script may take, on a machine that is busy with other things.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Runs a script that has to succeed.
pub fn run(lab: &mut Lab, guest: usize, script: &str) -> Answer {
    let answer = lab.run(guest, script, LIMIT).unwrap_or_else(|error| panic!("`{script}`: {error}"));
    assert!(answer.success(), "guest {guest}: `{script}` ended with {}:\n{}", answer.status, answer.text());
    answer
}

/// Runs a script in every guest at the same time; each has to succeed.
pub fn run_everywhere(lab: &mut Lab, script: &str) -> Vec<Answer> {
    let answers = lab.run_everywhere(script, LIMIT).unwrap_or_else(|error| panic!("`{script}`: {error}"));
    for (guest, answer) in answers.iter().enumerate() {
        assert!(
            answer.success(),
            "guest {guest}: `{script}` ended with {}:\n{}",
            answer.status,
            answer.text()
        );
    }
    answers
}

/// The objects of every HCA.
pub fn census(lab: &Lab) -> Vec<Census> {
    lab.served().census().expect("the devices' thread runs")
}

/// The same without memory keys, of which `mlx5_ib` keeps some for later.
pub fn census_without_keys(lab: &Lab) -> Vec<Census> {
    census(lab).into_iter().map(|census| Census { mkeys: 0, ..census }).collect()
}

/// Removes the drivers everywhere; nothing may be left in any HCA. (`modprobe -r` would want to remove also what other
/// modules still use.)
pub fn remove_drivers(lab: &mut Lab) {
    run_everywhere(lab, "rmmod mlx5_ib && rmmod mlx5_core && ! grep ^mlx5 /proc/modules");
    nothing_is_left(lab);
}

/// No HCA holds any object.
pub fn nothing_is_left(lab: &Lab) {
    for (node, census) in census(lab).iter().enumerate() {
        assert_eq!(census.total(), 0, "left over in HCA {node}: {census}");
    }
}

/// Fails when a kernel has complained since it was last asked; answers its messages.
pub fn kernels_are_content(lab: &mut Lab, guests: usize) -> Vec<Vec<KernelMessage>> {
    (0..guests)
        .map(|guest| {
            let messages =
                lab.guest(guest).and_then(|guest| guest.take_kernel_log()).expect("the kernel's log");
            let complaints = judge::complaints(&messages);
            assert!(complaints.is_empty(), "guest {guest} complains:\n{}", complaints.join("\n"));
            messages
        })
        .collect()
}

/// Fails when an HCA has refused anything or warned: strict as the model is, Linux gives it no reason.
pub fn hcas_are_content(lab: &Lab) {
    let complaints = lab.complaints();
    assert!(complaints.is_empty(), "the HCAs complain:\n{}", complaints.join("\n"));
}

/// Fails when an HCA has complained, except of a peer that had ended: where packets are lost, a program ends without the
/// acknowledgement of the other one's last message, which is then sent again to nobody.
pub fn hcas_complain_of_silence_only(lab: &Lab) {
    hcas_complain_of_silence_and(lab, &[]);
}

/// The same with complaints that have one of these words.
pub fn hcas_complain_of_silence_and(lab: &Lab, words: &[&str]) {
    let mut complaints = lab.complaints();
    let silence = "transport retry count exceeded: no response from QP ";
    complaints.retain(|line| !line.contains(silence) && !words.iter().any(|words| line.contains(words)));
    assert!(complaints.is_empty(), "the HCAs complain:\n{}", complaints.join("\n"));
}

/// Where a program listens.
#[derive(Clone, Copy)]
pub enum At {
    /// At a TCP port.
    Tcp(u16),
    /// By RDMA-CM.
    Cm,
}

/// A program that listens in guest 0 and its client in guest 1; both have to succeed. Answers what the server and the client
/// printed.
pub fn pair(lab: &mut Lab, at: At, server: &str, client: &str) -> [Answer; 2] {
    between(lab, [0, 1], at, server, client)
}

/// The same with the server in the first of these guests and the client in the second.
pub fn between(lab: &mut Lab, guests: [usize; 2], at: At, server: &str, client: &str) -> [Answer; 2] {
    let answers = any_between(lab, guests, at, server, client);
    assert!(answers.iter().all(Answer::success), "{}", both(server, client, &answers));
    answers
}

/// The same as [`pair`], however they end.
pub fn any_pair(lab: &mut Lab, at: At, server: &str, client: &str) -> [Answer; 2] {
    any_between(lab, [0, 1], at, server, client)
}

/// What a client of perftest says that came before its server: with `-R` both exchange words first, and then connect, for which the
/// server listens anew. Neither waits for the other, and the client does not survive the refusal that it means to retry after.
const TOO_EARLY: &str = "RDMA_CM_EVENT_REJECTED; error: 8";

/// So many times a client may come too early.
const ATTEMPTS: usize = 5;

/// The same as [`between`], however they end.
pub fn any_between(lab: &mut Lab, guests: [usize; 2], at: At, server: &str, client: &str) -> [Answer; 2] {
    for _ in 1..ATTEMPTS {
        let answers = attempt(lab, guests, at, server, client);
        if !answers[1].text().contains(TOO_EARLY) {
            return answers;
        }
        println!("{guests:?} {client}: it came before its server, and starts again");
    }
    attempt(lab, guests, at, server, client)
}

fn attempt(lab: &mut Lab, guests: [usize; 2], at: At, server: &str, client: &str) -> [Answer; 2] {
    let wait = match at {
        At::Tcp(port) => format!("listening server {port}"),
        At::Cm => listening_by_cm(server),
    };
    run(lab, guests[0], &format!("background server timeout 120 {server} && {wait}"));
    let ended = lab.run(guests[1], &format!("timeout 120 {client}"), LIMIT);
    let client_answer = ended.unwrap_or_else(|error| panic!("`{client}`: {error}"));
    if client_answer.text().contains(TOO_EARLY) {
        run(lab, guests[0], "kill $(cat /tmp/server.pid) 2> /dev/null; true");
    }
    let ended = lab.run(guests[0], "reap server", LIMIT);
    let server_answer = ended.unwrap_or_else(|error| panic!("`{server}`: {error}"));
    [server_answer, client_answer]
}

/// Waits until the program of the command `server` listens by RDMA-CM.
pub fn listening_by_cm(server: &str) -> String {
    format!("listening server cm {}", server.split(' ').next().unwrap_or_default())
}

/// What a pair of programs printed.
pub fn both(server: &str, client: &str, [of_server, of_client]: &[Answer; 2]) -> String {
    format!(
        "`{client}` ended with {}:\n{}\n`{server}` ended with {}:\n{}",
        of_client.status,
        of_client.text(),
        of_server.status,
        of_server.text()
    )
}

/// The value behind `name:` in the lines of `part`.
pub fn value<'a>(lines: &'a [String], name: &str) -> &'a str {
    lines
        .iter()
        .find_map(|line| line.trim().strip_prefix(name)?.trim_start().strip_prefix(':'))
        .unwrap_or_else(|| panic!("no {name} in:\n{}", lines.join("\n")))
        .trim()
}

/// As rdma-core prints a GUID.
pub fn guid(value: u64) -> String {
    format!(
        "{:04x}:{:04x}:{:04x}:{:04x}",
        value >> 48,
        value >> 32 & 0xffff,
        value >> 16 & 0xffff,
        value & 0xffff
    )
}
