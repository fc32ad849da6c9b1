package probe

import "bytes"

// maxRanks bounds the data-parallel ranks of a page: the largest engines have about a hundred.
const maxRanks = 256

// labels is what matters of a label set.
type labels struct {
	rank int // data-parallel; -1 = none
	// isCopy: the series is of one tensor-parallel, pipeline or expert rank, which all serve the same
	// requests, or of one of several API servers.
	isCopy bool
	// part: the series is only a part of another one: of one priority (SGLang).
	part  bool
	other bool // a state that is not counted: any of vllm:engine_sleep_state but awake
}

// readLabels reads the label set at the start of b, including its braces, and returns its length; all
// of b if the set is not closed.
func readLabels(b []byte) (l labels, size int) {
	l.rank = -1
	for i := 1; i < len(b); {
		switch b[i] {
		case ',', ' ':
			i++
			continue
		case '}':
			return l, i + 1
		}
		eq := bytes.IndexByte(b[i:], '=')
		if eq < 0 || i+eq+1 >= len(b) || b[i+eq+1] != '"' {
			return l, len(b)
		}
		from := i + eq + 2
		end := quoteEnd(b, from)
		if end < 0 {
			return l, len(b)
		}
		l.addLabel(b[i:i+eq], b[from:end])
		i = end + 1
	}
	return l, len(b)
}

// quoteEnd returns the index of the quote that ends the value beginning at from; -1 if there is none.
func quoteEnd(b []byte, from int) int {
	for i := from; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// addLabel reads one label.
func (l *labels) addLabel(name, value []byte) {
	switch string(name) {
	case "engine", "dp_rank": // vLLM's and LMDeploy's, SGLang's
		l.rank = rankOf(value)
	case "tp_rank", "pp_rank", "moe_ep_rank", "pid":
		l.isCopy = true
	case "priority":
		// SGLang exports the total too; its priority is empty.
		l.part = len(value) > 0
	case "sleep_state":
		l.other = string(value) != "awake"
	}
}

// rankOf returns a data-parallel rank, or -1.
func rankOf(value []byte) int {
	if len(value) == 0 || len(value) > 3 {
		return -1
	}
	rank := 0
	for _, c := range value {
		if c < '0' || c > '9' {
			return -1
		}
		rank = 10*rank + int(c-'0')
	}
	if rank >= maxRanks {
		return -1
	}
	return rank
}
