package prefix

// descent is the path of the last key through the tree. A key with the same beginning continues
// from its end: a request's key is matched, inserted, and inserted again with its response appended.
type descent struct {
	known     bool    // whether the path is current: a change of the tree must update the path or clear known
	path      []int32 // nodes whose whole edges match, from the root down
	pathDepth int     // total hashes of path
	tip       int32   // the node below path whose edge matches in part, or none
	depth     int     // total matching hashes: pathDepth, plus the matching part of tip's edge
	hash      uint64  // the last hash that matches
}

// end returns the last node of the path; the root if the path is empty.
func (d *descent) end() int32 {
	if n := len(d.path); n > 0 {
		return d.path[n-1]
	}
	return 0
}

// after returns the node below path[i], or none.
func (d *descent) after(i int) int32 {
	if i+1 < len(d.path) {
		return d.path[i+1]
	}
	return d.tip
}

// push appends id, whose whole edge matches, to the path.
func (d *descent) push(id int32) {
	d.path = append(d.path, id)
	d.pathDepth, d.tip = d.depth, none
}

// extendTo records that all of key is on the path.
func (d *descent) extendTo(key Key) {
	d.pathDepth, d.depth, d.hash = len(key), len(key), key[len(key)-1]
}

// isPrefixOf reports whether key begins with everything that matched. A hash identifies all text
// before it, so comparing the last one is enough.
func (d *descent) isPrefixOf(key Key) bool {
	return d.known && d.depth > 0 && d.depth <= len(key) && key[d.depth-1] == d.hash
}

// descend walks down as far as key matches and stores the path in t.walked.
func (t *Tree) descend(key Key) {
	d := &t.walked
	if !d.isPrefixOf(key) {
		*d = descent{known: true, path: d.path[:0], tip: none}
	}
	if d.tip == none || t.followEdge(d.tip, key) {
		for d.depth < len(key) {
			next := t.findChild(d.end(), key[d.depth])
			if next == none || !t.followEdge(next, key) {
				break
			}
		}
	}
	if d.depth > 0 {
		d.hash = key[d.depth-1]
	}
}

// followEdge walks down node id's edge, whose first hash matches the remaining key, and reports
// whether all of it matches.
func (t *Tree) followEdge(id int32, key Key) bool {
	d, n := &t.walked, t.node(id)
	d.depth = d.pathDepth + t.commonHashes(n, key[d.pathDepth:], max(1, d.depth-d.pathDepth))
	if d.depth-d.pathDepth < int(n.length) {
		d.tip = id
		return false
	}
	d.push(id)
	return true
}

// commonHashes returns the number of equal leading hashes of n's edge and rest; known is how many
// of them the caller has already found equal. A hash identifies all text before it, so all equal
// hashes precede the different ones and bisection finds their end.
func (t *Tree) commonHashes(n *node, rest []uint64, known int) int {
	length := min(int(n.length), len(rest))
	if t.hash(n, length-1) == rest[length-1] {
		return length
	}
	low, high := known, length-1 // hashes before low are equal, those from high on differ
	for low < high {
		if mid := (low + high) / 2; t.hash(n, mid) == rest[mid] {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// findChild returns the child of parent whose edge begins with hash, or none.
func (t *Tree) findChild(parent int32, hash uint64) int32 {
	x := &t.index
	if x.count == 0 {
		return none
	}
	m := mix(hash, parent)
	for at := x.home(m << 32); ; {
		id := x.nextEntry(m, &at)
		if id == none {
			return none
		}
		if n := t.node(id); n.first == hash && n.parent == parent {
			return id
		}
	}
}
