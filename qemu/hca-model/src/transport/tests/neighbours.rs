//! Two devices that both have much to send to each other: what each takes of the other's work leaves both to get on with their own.

use mlx5_prm::datapath::SendOpcode;

use super::bed::{Bed, Handle, Options};
use super::requests::Request;

/// Connections between the two, each used in both directions.
const PAIRS: usize = 16;
/// Bytes of a message.
const MESSAGE: usize = 128 << 10;
/// Steps of the world: a message takes about one.
const STEPS: usize = 2_000;

/// Keeps one message outstanding on every QP of a node; answers how many were done.
struct Sender {
    ends: Vec<Handle>,
    request: Request,
    done: u32,
}

impl Sender {
    fn turn(&mut self, bed: &mut Bed) {
        for end in &mut self.ends {
            while let Some(completion) = bed.poll_cq(end.node, end.cqn) {
                assert_eq!(completion.syndrome, 0, "{completion:?}");
                self.done += 1;
                bed.send(end, &self.request);
            }
        }
    }
}

/// What either side has done after a while, with requests of one kind.
fn both(opcode: SendOpcode) -> [u32; 2] {
    let mut bed = Bed::without_latency(2);
    let buffers = [0, 1].map(|node| bed.buffer(node, 2 * MESSAGE));
    let pairs: Vec<_> = (0..PAIRS).map(|_| bed.pair_on(0, 1, &Options::default())).collect();
    let (near, far): (Vec<Handle>, Vec<Handle>) = pairs.into_iter().unzip();
    let mut senders = [near, far].map(|ends| {
        let node = ends[0].node;
        let ((own, key), (other, rkey)) = (buffers[node], buffers[1 - node]);
        let data = [(own, MESSAGE as u32, key)];
        Sender { ends, request: Request::new(opcode, &data).to(other + MESSAGE as u64, rkey), done: 0 }
    });
    for sender in &mut senders {
        for end in &mut sender.ends {
            bed.send(end, &sender.request);
        }
    }
    for _ in 0..STEPS {
        bed.step();
        for sender in &mut senders {
            sender.turn(&mut bed);
        }
    }
    senders.map(|sender| sender.done)
}

#[test]
fn two_that_send_to_each_other_both_get_on() {
    for opcode in [SendOpcode::RDMA_WRITE, SendOpcode::RDMA_READ] {
        let done = both(opcode);
        println!("{opcode:?}: {done:?}");
        let (least, most) = (done[0].min(done[1]), done[0].max(done[1]));
        assert!(least > STEPS as u32 / 8, "{opcode:?}: {done:?} in {STEPS} steps");
        assert!(most <= 2 * least, "{opcode:?}: {done:?}");
    }
}
