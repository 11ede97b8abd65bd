//! mstflint's tools and devlink: which card it is, its firmware, its temperature, its registers by their names.

use super::Ground;
use crate::guests::run as in_guest;
use hca_model::card::CONNECTX_5;

/// A tool, and words of what it prints.
type Case = (&'static str, &'static [&'static str]);

const TOOLS: [Case; 5] = [
    ("mstmget_temp -d $device", &["45"]),
    ("mstreg -d $device --reg_name MGIR --get", &["device_id", "0x00001017", "hw_dev_id"]),
    (
        "mstreg -d $device --reg_name MCAM --get -i access_reg_group=0,feature_group=0",
        &["mng_access_reg_cap_mask"],
    ),
    ("mstlink -d $device", &["Active", "LinkUp", "IB-EDR", "4x", "No issue was observed"]),
    ("devlink dev info", &["fw.psid", "stored:"]),
];

const DEVICE: &str = "device=$(basename $(readlink -f /sys/class/infiniband/mlx5_0/device))";

pub fn run(ground: &mut Ground) {
    let (major, minor, sub_minor) = CONNECTX_5.firmware;
    let version = format!("{major}.{minor}.{sub_minor:04}");
    for tool in ["mstflint -d $device query", "mstflint -d $device query full"] {
        expect(ground, tool, &[&version, CONNECTX_5.psid]);
    }
    for (tool, words) in TOOLS {
        expect(ground, tool, words);
    }
    // Settings are not there to be changed, and the tool says so.
    let refused = in_guest(&mut ground.lab, 1, &format!("{DEVICE}; ! mstconfig -d $device query"));
    assert!(refused.text().contains("not supported"), "{}", refused.text());
}

fn expect(ground: &mut Ground, tool: &str, words: &[&str]) {
    let answer = ground.try_in(1, &format!("{DEVICE}; timeout 60 {tool}"));
    let text = answer.text();
    let good = answer.success() && words.iter().all(|word| text.contains(word));
    ground.report(tool, answer.time, good, || format!("{tool}, of which {words:?} is expected:\n{text}"));
}
