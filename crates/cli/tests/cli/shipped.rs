//! The binary as it is shipped.

use planish_testkit::files::needed;

/// The first are in the program and in `planish-store` with their feature `faults`; line tables name the file.
const MARKS: &[&str] = &["PLANISH_FAULT", "kill-before", "fs/faults.rs"];

#[test]
fn it_cannot_be_made_to_fail() {
    let Some(binary) = needed("PLANISH_BIN", "") else { return };
    let bytes = std::fs::read(&binary).unwrap();
    let holds = |mark: &str| bytes.windows(mark.len()).any(|w| w == mark.as_bytes());
    // A name that is known to be there, so that a search that finds nothing would show.
    assert!(holds("TAO_RUN_DIR"));
    for mark in MARKS {
        assert!(!holds(mark), "{} holds {mark}", binary.display());
    }
}
