//! A Linux guest and a unikernel, each with an emulated HCA on one fabric, move data by messages, writes, reads and atomics,
//! each as server and as client.

use crate::guests::{census_without_keys, hcas_are_content, kernels_are_content, remove_drivers, run};
use rdma_lab::linux::{Kernel, Lab, Options};
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Running, Verdict};
use runner::kernel_image;
use runner::linux::judge;
use runner::setup;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use workload::verbs::{PROGRAM, Step};

/// The longest that one exchange may take.
const LIMIT: Duration = Duration::from_secs(180);

/// The unikernel's lines until one begins with `start`, that one included.
fn lines_until(running: &mut Running, start: Option<&str>) -> Vec<String> {
    let deadline = Instant::now() + LIMIT;
    let mut lines = Vec::new();
    loop {
        match running.next_line(deadline) {
            Ok(Some(Output::Console(line))) => {
                let found = start.is_some_and(|start| line.starts_with(start));
                lines.push(line);
                if found {
                    return lines;
                }
            }
            Ok(Some(Output::Qemu(line))) => eprintln!("qemu: {line}"),
            Ok(None) => {
                assert!(start.is_none(), "the unikernel ended before {start:?}:\n{}", lines.join("\n"));
                return lines;
            }
            Err(error) => panic!("{error}; the unikernel printed:\n{}", lines.join("\n")),
        }
    }
}

fn all_verified(who: &str, lines: &[String]) {
    let text = lines.join("\n");
    for Step { op, count } in PROGRAM {
        let start = format!("@result op={} ", op.name());
        let line = lines.iter().find(|line| line.starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("{who} does not print {start:?}:\n{text}"));
        let word = format!("verified={count}");
        assert!(line.split_whitespace().any(|found| found == word), "{who}: {line}");
    }
    assert!(lines.iter().any(|line| line == "@done verified=true"), "{who}:\n{text}");
}

/// A unikernel on the first spare HCA and guest 0 move data by all operations.
pub fn exchange(lab: &mut Lab, image: &Path, role: &str) {
    let other = if role == "server" { "client" } else { "server" };
    let mut options = unikernel::Options::new(&format!("program=verbs role={role}"));
    options.hcas = vec![lab.socket(lab.first_spare()).expect("a socket").to_path_buf()];
    let mut unikernel = unikernel::start(lab.qemu(), image, &options).expect("QEMU starts");
    let mut lines = lines_until(&mut unikernel, Some("@verbs "));
    let values = lines.last().and_then(|line| line.strip_prefix("@verbs ")).unwrap_or_default().to_owned();
    let begin = format!(
        "background verbs verbs {other} {values}\n\
         listening verbs says '@verbs '"
    );
    let own = run(lab, 0, &begin).lines;
    let own = own.iter().find_map(|line| line.strip_prefix("@verbs ")).expect("its values");
    unikernel.write_line(&format!("@peer {own}")).expect("the unikernel reads");
    let answer = lab.run(0, "reap verbs", LIMIT).expect("it ends");
    lines.extend(lines_until(&mut unikernel, None));
    let finished = unikernel.finish(None).expect("it ends");
    let both = format!("Linux:\n{}\nunikernel:\n{}", answer.text(), lines.join("\n"));
    assert!(answer.success(), "status {}\n{both}", answer.status);
    assert_eq!(finished.verdict, Verdict::Success, "{both}");
    all_verified("Linux", &answer.lines);
    all_verified("the unikernel", &lines);
    println!("unikernel as {role}: {:.1} s", answer.time.as_secs_f64());
}

fn meet(kernel: Kernel) {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guest/verbs.c");
    let options = Options { spare: 1, programs: vec![program], ..Options::new(kernel, 1) };
    let Some(mut lab) = judge::lab_or_skip(options) else { return };
    println!("Linux {}", lab.version());
    setup::rust_targets().expect("the bare-metal target");
    let image = kernel_image::build_workload().expect("the image builds");
    run(&mut lab, 0, "dmesg -c > /dev/null; hcas-up");
    let before = census_without_keys(&lab);
    for role in ["server", "client"] {
        exchange(&mut lab, &image, role);
        assert_eq!(census_without_keys(&lab), before, "objects before and after the exchange");
    }
    remove_drivers(&mut lab);
    kernels_are_content(&mut lab, 1);
    hcas_are_content(&lab);
    lab.stop().expect("it powers off");
}

#[test]
fn linux_and_a_unikernel_move_data_both_ways() {
    for kernel in judge::kernels() {
        meet(*kernel);
    }
}
