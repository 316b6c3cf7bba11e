//! `planish inspect`: what is in a GGUF or safetensors file.

mod listing;
mod stats;
mod value;

use std::path::{Path, PathBuf};

use planish_base::Result;
use planish_store::Bytes;

use crate::Context;
use crate::output::Out;
use listing::Listing;

/// Show the header, metadata and tensors of a model or adapter file (GGUF or safetensors)
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF or safetensors file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Show statistics of the values of one tensor instead
    #[arg(long, value_name = "NAME")]
    tensor: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// For a file that is not one of these, an unknown tensor, or a tensor type that cannot be decoded.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let bytes = Bytes::map(&args.file)?;
    let listing = parse(&args.file, bytes).map_err(|e| e.in_file(&args.file))?;
    let mut out = Out::new();
    match &args.tensor {
        None if cx.json => out.json(&listing.json())?,
        None => listing.print(&mut out)?,
        Some(name) => {
            let tensor = listing.tensor(name).map_err(|e| e.in_file(&args.file))?;
            let stats = stats::of(&listing, tensor, &cx.interrupt).map_err(|e| e.in_file(&args.file))?;
            match cx.json {
                true => out.json(&stats.json(tensor))?,
                false => stats.print(tensor, &mut out)?,
            }
        }
    }
    out.flush()
}

/// A file is taken for safetensors by its name, or by a JSON header where safetensors have it.
fn parse(path: &Path, bytes: Bytes) -> Result<Listing> {
    let named_so = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"));
    match !bytes.starts_with(b"GGUF") && (named_so || bytes.get(8) == Some(&b'{')) {
        true => Listing::safetensors(bytes),
        false => Listing::gguf(bytes),
    }
}
