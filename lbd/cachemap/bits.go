package cachemap

import stdbits "math/bits"

// bits is a set of small integers. The first 64 need no further memory.
type bits struct {
	low  uint64
	high []uint64
}

func (s *bits) has(i int) bool {
	if i < 64 {
		return s.low&(1<<i) != 0
	}
	w := i/64 - 1
	return w < len(s.high) && s.high[w]&(1<<(i%64)) != 0
}

func (s *bits) add(i int) {
	if i < 64 {
		s.low |= 1 << i
		return
	}
	w := i/64 - 1
	for len(s.high) <= w {
		s.high = append(s.high, 0)
	}
	s.high[w] |= 1 << (i % 64)
}

func (s *bits) remove(i int) {
	if i < 64 {
		s.low &^= 1 << i
	} else if w := i/64 - 1; w < len(s.high) {
		s.high[w] &^= 1 << (i % 64)
	}
}

func (s *bits) empty() bool {
	for _, w := range s.high {
		if w != 0 {
			return false
		}
	}
	return s.low == 0
}

// each calls f for every element in increasing order.
func (s *bits) each(f func(i int)) {
	for i := -1; i < len(s.high); i++ {
		w := s.low
		if i >= 0 {
			w = s.high[i]
		}
		for ; w != 0; w &= w - 1 {
			f((i+1)*64 + stdbits.TrailingZeros64(w))
		}
	}
}
