//! Graphs: what a capture recorded, instantiated and replayed.

use std::ffi::{c_uint, c_ulonglong};

use crate::answers::{Answer, INVALID_HANDLE};
use crate::entry::driver;
use crate::queue::Work;
use crate::state::{Sim, sim};

pub(crate) struct Graph {
    pub(crate) work: Vec<Work>,
    pub(crate) executable: bool,
}

impl Sim {
    fn instantiate(&mut self, graph: usize) -> Answer<usize> {
        let work = self.graphs.get(&graph).ok_or(INVALID_HANDLE)?.work.clone();
        let handle = self.handle();
        self.graphs.insert(handle, Graph { work, executable: true });
        Ok(handle)
    }

    fn forget_graph(&mut self, handle: usize, executable: bool) -> Answer {
        if self.graphs.get(&handle).is_some_and(|graph| graph.executable == executable) {
            self.graphs.remove(&handle);
            return Ok(());
        }
        self.misused(format!("graph {handle:#x} destroyed twice, or never made"));
        Err(INVALID_HANDLE)
    }
}

driver! {
    fn cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, _flags: c_ulonglong) {
        let handle = sim().instantiate(graph)?;
        // SAFETY: the caller passes a place for the answer, here and below.
        unsafe { *executable = handle };
        Ok(())
    }

    fn cuGraphInstantiate_v2(
        executable: *mut usize,
        graph: usize,
        _error_node: *mut usize,
        _log: *mut u8,
        _bytes: usize,
    ) {
        let handle = sim().instantiate(graph)?;
        unsafe { *executable = handle };
        Ok(())
    }

    fn cuGraphUpload(executable: usize, _stream: usize) {
        sim().graphs.get(&executable).filter(|graph| graph.executable).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuGraphLaunch(executable: usize, stream: usize) {
        let mut sim = sim();
        let stream = sim.stream(stream)?;
        let graph = sim.graphs.get(&executable).filter(|graph| graph.executable).ok_or(INVALID_HANDLE)?;
        for work in graph.work.clone() {
            sim.enqueue(stream, work, vec![])?;
        }
        Ok(())
    }

    fn cuGraphDestroy(graph: usize) {
        sim().forget_graph(graph, false)
    }

    fn cuGraphExecDestroy(executable: usize) {
        sim().forget_graph(executable, true)
    }

    fn cuGraphGetNodes(graph: usize, _nodes: *mut usize, count: *mut usize) {
        let sim = sim();
        let graph = sim.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
        unsafe { *count = graph.work.len() };
        Ok(())
    }

    fn cuCtxGetFlags(flags: *mut c_uint) {
        sim().current()?;
        unsafe { *flags = 0 };
        Ok(())
    }
}
