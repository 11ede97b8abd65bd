//! The example runs.

#[path = "../examples/ping.rs"]
mod example;

#[test]
fn the_example_pings() {
    example::main().expect("a ping and its answer, four times");
}
