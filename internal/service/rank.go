package service

import "strconv"

// MaxDataParallel is the maximum number of data-parallel ranks of one engine.
const MaxDataParallel = 64

// Ranks returns the number of data-parallel ranks of the replica, at least 1.
func (c ReplicaConfig) Ranks() int { return max(1, c.DataParallel) }

// RankID returns the ID of a rank, from 0, for placement: us-0/2, or the replica's own ID where it
// has one rank.
func (c ReplicaConfig) RankID(rank int) string {
	if c.Ranks() == 1 {
		return c.ID
	}
	return c.ID + "/" + strconv.Itoa(rank)
}
