//! The example runs.

#[path = "../examples/ping.rs"]
mod ping;

#[test]
fn the_example_pings() {
    ping::main().expect("a ping and its answer, four times");
}
