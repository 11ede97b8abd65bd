//! How fast the model moves payload: a figure to print, and a floor far below it so that a collapse shows.

use std::time::Instant;

use mlx5_prm::datapath::{FmCeSe, SendOpcode};

use super::bed::{Bed, Options, pattern};
use super::requests::Request;

/// Moves `total` bytes in messages of `len` with up to 16 outstanding. Answers with bytes per second of this processor.
fn measure(opcode: SendOpcode, len: usize, total: usize) -> f64 {
    let mut bed = Bed::new(2);
    let (mut a, _) = bed.pair(&Options { log_sra_max: 4, log_rra_max: 4, ..Options::default() });
    let (local, lkey) = bed.buffer(0, 1 << 20);
    let (remote, rkey) = bed.buffer(1, 1 << 20);
    let data = pattern(9, len as u32, 1 << 20);
    bed.guests[0].write(local, &data);
    bed.guests[1].write(remote, &data);
    let request =
        Request::new(opcode, &[(local, len as u32, lkey)]).to(remote, rkey).flags(FmCeSe::CQ_UPDATE);
    let messages = total / len;
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < messages {
        while posted < messages && posted - done < 16 {
            bed.post(&mut a, &request);
            posted += 1;
        }
        bed.ring(&a);
        bed.step();
        while let Some(completion) = bed.poll_cq(0, a.cqn) {
            assert_eq!(completion.syndrome, 0);
            done += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(bed.guests[1].read(remote, len), data[..len]);
    (messages * len) as f64 / seconds
}

#[test]
fn payload_moves_fast() {
    for (opcode, len, total) in [
        (SendOpcode::RDMA_WRITE, 1 << 20, 512 << 20),
        (SendOpcode::RDMA_WRITE, 4096, 256 << 20),
        (SendOpcode::RDMA_READ, 1 << 16, 256 << 20),
        (SendOpcode::RDMA_WRITE, 64, 8 << 20),
    ] {
        let rate = measure(opcode, len, total);
        eprintln!("{opcode} of {len} bytes: {:.0} MB/s, {:.0} messages/s", rate / 1e6, rate / len as f64);
        if len >= 4096 {
            assert!(rate > 30e6, "{opcode} of {len} bytes: {rate} bytes/s");
        }
    }
}
