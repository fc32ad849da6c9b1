package service

import "strconv"

// MaxDataParallel bounds the data-parallel ranks of one engine.
const MaxDataParallel = 64

// Ranks is how many data-parallel ranks the replica has, at least 1.
func (c ReplicaConfig) Ranks() int { return max(1, c.DataParallel) }

// RankID is the id that a rank, from 0, is known by where requests are placed:
// us-0/2, or the replica's own where it has but one.
func (c ReplicaConfig) RankID(rank int) string {
	if c.Ranks() == 1 {
		return c.ID
	}
	return c.ID + "/" + strconv.Itoa(rank)
}
