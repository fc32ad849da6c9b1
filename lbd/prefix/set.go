package prefix

import "math/bits"

// set is a set of small integers. The first 64 live in place, which is all
// that most services ever need.
type set struct {
	lo   uint64
	more []uint64
}

func (s *set) word(i int) uint64 {
	if i == 0 {
		return s.lo
	}
	if i-1 < len(s.more) {
		return s.more[i-1]
	}
	return 0
}

func (s *set) has(t int) bool { return s.word(t/64)&(1<<(t%64)) != 0 }

// add puts t in and reports whether the set grew.
func (s *set) add(t int) bool {
	w, bit := t/64, uint64(1)<<(t%64)
	if w == 0 {
		grew := s.lo&bit == 0
		s.lo |= bit
		return grew
	}
	for len(s.more) < w {
		s.more = append(s.more, 0)
	}
	grew := s.more[w-1]&bit == 0
	s.more[w-1] |= bit
	return grew
}

func (s *set) remove(t int) {
	w, bit := t/64, uint64(1)<<(t%64)
	switch {
	case w == 0:
		s.lo &^= bit
	case w-1 < len(s.more):
		s.more[w-1] &^= bit
	}
}

func (s *set) empty() bool {
	if s.lo != 0 {
		return false
	}
	for _, w := range s.more {
		if w != 0 {
			return false
		}
	}
	return true
}

func (s *set) clone() set {
	c := set{lo: s.lo}
	if len(s.more) > 0 {
		c.more = append([]uint64(nil), s.more...)
	}
	return c
}

func (s *set) equal(o *set) bool {
	n := max(len(s.more), len(o.more))
	for i := 0; i <= n; i++ {
		if s.word(i) != o.word(i) {
			return false
		}
	}
	return true
}

// each calls f for every member in increasing order.
func (s *set) each(f func(t int)) {
	for i := 0; i <= len(s.more); i++ {
		for w := s.word(i); w != 0; w &= w - 1 {
			f(i*64 + bits.TrailingZeros64(w))
		}
	}
}
