package probe

import "skyserve/lbd/policy"

// loadPaths are SGLang's live load endpoints, the newer one first. Its metrics page is updated only at
// some steps; these are current. The older one is deprecated where both exist.
var loadPaths = [...]string{"/v1/loads?include=core", "/get_load"}

// parseLoads parses a response of SGLang's load endpoints into the counts and KV utilisation of the
// ranks. If there is only one, it receives the sums of the counts and the mean KV utilisation. It returns
// false if the response is not a list of loads. Both responses contain an object per data-parallel rank:
//
//	/v1/loads: {"loads": [{"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1, "token_usage": 0.5, ...}]}
//	/get_load: [{"dp_rank": 0, "num_reqs": 4, "num_waiting_reqs": 1, ...}], where num_reqs includes the waiting ones
func parseLoads(body []byte, ranks []rankFigures) bool {
	for i := range ranks {
		ranks[i].Pending, ranks[i].Running, ranks[i].KV = policy.Maybe[int]{}, policy.Maybe[int]{}, policy.Maybe[float64]{}
	}
	s := scanner{b: body}
	var sum rankLoad
	element := func() {
		l, ok := s.rankLoad()
		switch {
		case !ok:
			sum.pending.invalid, sum.running.invalid, sum.kv.invalid = true, true, true
		case len(ranks) == 1:
			sum.add(&l)
		case l.rank >= 0 && l.rank < len(ranks):
			l.read(&ranks[l.rank].EngineFigures)
		}
	}
	found := false
	if s.next() == '[' {
		found = s.eachElement(element)
	} else {
		complete := s.eachKey(func(key []byte) {
			if string(key) == "loads" {
				found = s.eachElement(element)
			}
		})
		found = found && complete
	}
	if found && len(ranks) == 1 {
		sum.read(&ranks[0].EngineFigures)
	}
	return found
}

// rankLoad is one element of a list of loads.
type rankLoad struct {
	rank                 int
	pending, running, kv series
}

func (l *rankLoad) add(o *rankLoad) {
	l.pending.addRank(&o.pending)
	l.running.addRank(&o.running)
	l.kv.addRank(&o.kv)
}

func (l *rankLoad) read(f *EngineFigures) {
	f.Pending, f.Running, f.KV = l.pending.count(), l.running.count(), l.kv.share()
}

// rankLoad reads an element. It returns false if the element is not a load.
func (s *scanner) rankLoad() (l rankLoad, ok bool) {
	all, waiting := 0.0, 0.0
	ok = s.eachKey(func(key []byte) {
		switch string(key) {
		case "dp_rank":
			if v, known := s.number(); known {
				l.rank = int(min(max(v, -1), maxRanks))
			}
		case "num_waiting_reqs":
			v, known := s.number()
			l.pending.addValue(v, known, false)
			waiting = v
		case "num_running_reqs":
			v, known := s.number()
			l.running.addValue(v, known, false)
		case "num_reqs":
			v, known := s.number()
			l.running.addValue(0, known, false)
			all = v
		case "token_usage":
			v, known := s.number()
			l.kv.addValue(v, known, false)
		}
	})
	if all > 0 {
		l.running.sum += all - waiting
	}
	return l, ok && l.pending.seen()
}
