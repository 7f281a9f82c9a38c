//! Suites of others.

use super::super::suites::cases::Case;
use super::Bench;

pub(super) fn franz_go(_bench: &Bench<'_>) -> Result<Vec<Case>, String> {
    Ok(Vec::new())
}
pub(super) fn kafka_go(_bench: &Bench<'_>) -> Result<Vec<Case>, String> {
    Ok(Vec::new())
}
pub(super) fn kafka_python(_bench: &Bench<'_>) -> Result<Vec<Case>, String> {
    Ok(Vec::new())
}
pub(super) fn librdkafka(_bench: &Bench<'_>) -> Result<Vec<Case>, String> {
    Ok(Vec::new())
}
