//! What the system says about this process's memory, and about itself.

use std::path::Path;

use crate::fs::read_text_bounded;

/// Files of /proc and of control groups are small.
const LIMIT: u64 = 1 << 20;

/// Bytes of this process in memory now; 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    status("VmRSS:").unwrap_or(0)
}

/// The most bytes of this process that were in memory at one time; 0 where the system does not say.
pub fn peak_resident_bytes() -> u64 {
    status("VmHWM:").unwrap_or(0)
}

/// Bytes that this process can still take: the least of the free memory of the system, what its control group leaves
/// and what its address space limit leaves. None where the system does not say.
pub fn available_bytes() -> Option<u64> {
    let free = field("/proc/meminfo", "MemAvailable:");
    [free, group_room(), address_room()].into_iter().flatten().min()
}

/// The name of the machine; none where the system does not say.
pub fn host_name() -> Option<String> {
    #[cfg(unix)]
    return Some(rustix::system::uname().nodename().to_string_lossy().into_owned());
    #[cfg(not(unix))]
    return None;
}

/// A line of the process's status, in bytes.
pub(crate) fn status(key: &str) -> Option<u64> {
    field("/proc/self/status", key)
}

/// A line `key   N kB`.
fn field(path: &str, key: &str) -> Option<u64> {
    let text = read_text_bounded(Path::new(path), LIMIT).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn number(path: &str) -> Option<u64> {
    read_text_bounded(Path::new(path), LIMIT).ok()?.trim().parse().ok()
}

/// Version 2 of control groups, as a container sees its own.
fn group_room() -> Option<u64> {
    let (limit, used) = (number("/sys/fs/cgroup/memory.max")?, number("/sys/fs/cgroup/memory.current")?);
    Some(limit.saturating_sub(used))
}

fn address_room() -> Option<u64> {
    let text = read_text_bounded(Path::new("/proc/self/limits"), LIMIT).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(status("VmSize:")?))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_system_answers() {
        let (now, peak) = (resident_bytes(), peak_resident_bytes());
        assert!(now > 100_000 && peak >= now, "{now} {peak}");
        assert!(available_bytes().is_some_and(|b| b > 1_000_000));
    }
}
