package probe

import "skyserve/lbd/policy"

// parseIterations parses the metrics of TensorRT-LLM in JSON: an array with an object for each of
// the engine's steps since it was last read. isList is false if the page is something else; some is
// false if the array contains no step; otherwise the figures are those of the last one.
func parseIterations(page []byte) (f EngineFigures, some, isList bool) {
	s := scanner{b: page}
	isList = s.eachElement(func() {
		var step iteration
		if s.eachKey(func(key []byte) { s.iterationField(&step, key) }) {
			f, some = step.read(), true
		}
	})
	if !isList {
		return EngineFigures{}, false, false
	}
	return f, some, true
}

// iteration accumulates the figures of one step.
type iteration struct {
	queued, paused, active, hitRate, used, blocks, time series
}

// iterationField reads a field of a step, or of an object in it.
func (s *scanner) iterationField(step *iteration, key []byte) {
	switch string(key) {
	case "kvCacheStats", "inflightBatchingStats":
		s.eachKey(func(key []byte) { s.iterationField(step, key) })
	case "numQueuedRequests":
		s.addTo(&step.queued)
	case "numPausedRequests":
		s.addTo(&step.paused)
	case "numActiveRequests":
		s.addTo(&step.active)
	case "cacheHitRate":
		s.addTo(&step.hitRate)
	case "usedNumBlocks":
		s.addTo(&step.used)
	case "maxNumBlocks":
		s.addTo(&step.blocks)
	case "iterLatencyMS":
		s.addTo(&step.time)
	}
}

// addTo adds a number to a series.
func (s *scanner) addTo(to *series) {
	v, ok := s.number()
	to.addValue(v, ok, false)
}

func (i *iteration) read() EngineFigures {
	f := EngineFigures{Pending: i.queued.count(), Running: i.active.count(), HitRate: i.hitRate.share(), Beat: i.time.total()}
	if i.paused.seen() {
		paused := i.paused.count()
		f.Pending = policy.Maybe[int]{Value: f.Pending.Value + paused.Value, Known: f.Pending.Known && paused.Known}
		if !f.Pending.Known {
			f.Pending = policy.Maybe[int]{}
		}
	}
	if blocks := i.blocks.total(); blocks.Known && blocks.Value > 0 {
		kv := series{sum: i.used.sum / blocks.Value, n: i.used.n, invalid: i.used.invalid}
		f.KV = kv.share()
	}
	return f
}
