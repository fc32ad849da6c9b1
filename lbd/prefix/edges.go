package prefix

// edges stores the hashes between the first and the last of every edge, in chunks that are filled from front to back. (The
// upper part of a split edge keeps its last hash too: splitPiece.) The hashes of one edge are a piece: a header word, and a
// word for each hash. The upper half of the header is the size of the piece, header included; the lower half is its node,
// or 0 if the piece was freed.
//
// The words of freed pieces are dead. When a quarter of all words are dead, the live words of the chunks with the most
// dead words are copied to other chunks. So the memory is proportional to the contents for any lengths of edges, the
// garbage collector has no work, and a word costs about wordBytes at most.
type edges struct {
	chunks     []*[edgeChunk]uint64
	fill       []int              // words written, by chunk
	live       []int              // words of pieces in use, by chunk
	freeChunks []uint32           // indices of released chunks
	spareChunk *[edgeChunk]uint64 // a released chunk for reuse, with its old words; nil = none
	head       uint32             // the chunk being written
	used       int                // sum of live
	dead       int                // sum of fill minus used
}

const (
	edgeChunk = 4096
	edgeMask  = edgeChunk - 1
	edgeBits  = 12
	// wordBytes is the approximate maximum memory of a word: 8 * 4/3 * 4096/3586 = 12.2. A quarter of all words are
	// dead. The last 510 words of each chunk may be empty, because the longest piece has maxEdge-1 = 511.
	wordBytes = 12
)

func (e *edges) word(at uint32) uint64 { return e.chunks[at>>edgeBits][at&edgeMask] }

func (e *edges) words(at uint32, n int) []uint64 {
	from := int(at & edgeMask)
	return e.chunks[at>>edgeBits][from : from+n]
}

func (e *edges) header(at uint32) *uint64 { return &e.chunks[at>>edgeBits][at&edgeMask] }

func pieceHeader(size int, id int32) uint64 { return uint64(size)<<32 | uint64(uint32(id)) }

// setNode sets the node of the piece at position at to id.
func (e *edges) setNode(at uint32, id int32) {
	h := e.header(at)
	*h = *h>>32<<32 | uint64(uint32(id))
}

// appendPiece writes a piece of node id and returns its position.
func (e *edges) appendPiece(words []uint64, id int32) uint32 {
	size := len(words) + 1
	if len(e.chunks) == 0 || e.fill[e.head]+size > edgeChunk {
		e.openChunk()
	}
	at := e.head<<edgeBits | uint32(e.fill[e.head])
	*e.header(at) = pieceHeader(size, id)
	copy(e.words(at+1, len(words)), words)
	e.fill[e.head] += size
	e.live[e.head] += size
	e.used += size
	return at
}

// openChunk starts a chunk.
func (e *edges) openChunk() {
	if n := len(e.freeChunks); n > 0 {
		e.head = e.freeChunks[n-1]
		e.freeChunks = e.freeChunks[:n-1]
	} else {
		e.head = uint32(len(e.chunks))
		e.chunks, e.fill, e.live = append(e.chunks, nil), append(e.fill, 0), append(e.live, 0)
	}
	if e.spareChunk == nil {
		e.spareChunk = new([edgeChunk]uint64)
	}
	e.chunks[e.head], e.spareChunk = e.spareChunk, nil
}

// free frees the piece at position at.
func (e *edges) free(at uint32) {
	e.setNode(at, 0)
	e.markDead(at>>edgeBits, int(*e.header(at)>>32))
}

// markDead counts size words of a chunk as dead; a chunk without live words is released.
func (e *edges) markDead(chunk uint32, size int) {
	e.live[chunk] -= size
	e.used -= size
	e.dead += size
	if e.live[chunk] == 0 && chunk != e.head {
		e.releaseChunk(chunk)
	}
}

func (e *edges) releaseChunk(chunk uint32) {
	e.dead -= e.fill[chunk]
	e.spareChunk = e.chunks[chunk]
	e.chunks[chunk], e.fill[chunk] = nil, 0
	e.freeChunks = append(e.freeChunks, chunk)
}

// splitPiece splits the piece at position at, for an edge of n hashes h(0), h(1), ... that is split after k of
// them. The upper part keeps its position and belongs to node up. splitPiece returns the position of the lower part,
// which belongs to node low. No hashes are copied: node low stores h(k) itself, so the word of h(k) becomes a header.
//
//	before: header h(1) ... h(k-1) h(k)   h(k+1) ...
//	after:  header h(1) ... h(k-1) header h(k+1) ...
func (e *edges) splitPiece(at uint32, n, k int, up, low int32) uint32 {
	lower := at + uint32(k)
	if size := int(*e.header(at)>>32) - k; size > 0 {
		*e.header(lower) = pieceHeader(size, low)
		if !hasInner(n - k) {
			e.free(lower)
		}
	}
	*e.header(at) = pieceHeader(k, up)
	if !hasInner(k) {
		e.free(at)
	}
	return lower
}

// compact rewrites chunks while too many words are dead. It calls moved with the new position of
// each moved edge. Every chunk that it selects has dead words, so their number falls and compact
// terminates.
func (e *edges) compact(moved func(id int32, at uint32)) {
	for 3*e.dead > e.used+edgeChunk {
		worst := e.mostDeadChunk()
		if worst == e.head {
			e.openChunk()
		}
		e.rewrite(worst, moved)
	}
}

// mostDeadChunk returns the chunk with the most dead words. It returns the head only if no other
// chunk has dead words.
func (e *edges) mostDeadChunk() uint32 {
	worst, maxDead := e.head, 0
	for i := range e.chunks {
		if dead := e.fill[i] - e.live[i]; dead > maxDead && uint32(i) != e.head {
			worst, maxDead = uint32(i), dead
		}
	}
	return worst
}

// rewrite moves every used piece of a chunk to another chunk and releases the chunk.
func (e *edges) rewrite(chunk uint32, moved func(id int32, at uint32)) {
	for from := 0; from < e.fill[chunk]; {
		h := e.chunks[chunk][from]
		size, id := int(h>>32), int32(uint32(h))
		if id != 0 {
			moved(id, e.appendPiece(e.chunks[chunk][from+1:from+size], id))
		}
		from += size
	}
	e.used -= e.live[chunk]
	e.dead += e.live[chunk]
	e.live[chunk] = 0
	e.releaseChunk(chunk)
}
