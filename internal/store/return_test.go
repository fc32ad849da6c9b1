package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// A member returns after a month in which everything on its disk was changed or removed by the others. It takes over
// their state before it counts for a majority, and restores nothing of its own.
func TestClusterMemberReturnsAfterLongAbsence(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	st := c.client("a")
	c.waitReplicated()
	put(t, st, "desired.deleted", "1")
	put(t, st, "desired.changed", "1")
	first := acquireSoon(t, st, "before", time.Second)
	c.servers["b"].Close()
	delete(c.servers, "b")
	last := changeEverything(t, st)
	next := acquireSoon(t, st, "meanwhile", time.Second)

	c.start("b")
	c.waitReplicated()
	lost := c.leader() // whichever it is, b is one of the majority of two from now on
	if lost == "b" {
		lost = "a"
	}
	c.servers[lost].Close()
	delete(c.servers, lost)
	checkEverything(t, c.client("b"), last)
	if l := acquireSoon(t, c.client("b"), "after", time.Second); l.Token() <= next.Token() || next.Token() <= first.Token() {
		t.Errorf("tokens %d, %d and %d do not increase", first.Token(), next.Token(), l.Token())
	}
}

// The disk of a member that was replaced returns after a month, when its machine is switched on again beside the machine
// that replaced it: it brings nothing back, and nothing is missing when it is off again.
func TestClusterReplacedMemberReturns(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start("a", "b", "c")
	st := c.client("b")
	c.waitReplicated()
	put(t, st, "desired.deleted", "1")
	put(t, st, "desired.changed", "1")
	c.servers["a"].Close()
	old := filepath.Join(c.dir, "old")
	if err := os.Rename(filepath.Join(c.dir, "a"), old); err != nil {
		t.Fatal(err)
	}
	c.start("a")
	c.waitMembers("a", "b", "c")
	last := changeEverything(t, st)
	for _, n := range []string{"b", "c"} { // in memory they remember for some minutes which member they removed
		c.servers[n].Close()
		c.start(n)
		c.waitReplicated()
	}

	o := c.options("a")
	o.Dir, o.Listen, o.Cluster.Listen = old, testkit.FreeAddr(), testkit.FreeAddr()
	returned := must[*Server](t)(Serve(t.Context(), o))
	t.Cleanup(returned.Close)
	testkit.Eventually(t, "the old disk follows the leader", func() bool { return returned.Cluster().Leader != "" })
	put(t, st, "desired.meanwhile", "1")
	checkEverything(t, st, last)
	// The two machines of node a have no route to each other: a may report the other as lost.
	c.waitReplicatedAt("b", "c")
	checkEverything(t, st, last)

	returned.Close()
	c.waitMembers("a", "b", "c")
	c.servers["c"].Close()
	delete(c.servers, "c")
	put(t, st, "desired.last", "1")
	checkEverything(t, c.client("a"), last)
}

// waitReplicatedAt waits until some members observe a replicated cluster.
func (c *testCluster) waitReplicatedAt(nodes ...string) {
	c.t.Helper()
	testkit.Eventually(c.t, "the cluster is replicated", func() bool {
		return !slices.ContainsFunc(nodes, func(n string) bool { return !c.servers[n].Cluster().Replicated() })
	})
}

// waitMembers waits until nodes observe a replicated cluster of Replicas members.
func (c *testCluster) waitMembers(nodes ...string) {
	c.t.Helper()
	testkit.Eventually(c.t, "the cluster has three members, which hold all data", func() bool {
		return !slices.ContainsFunc(nodes, func(n string) bool {
			status := c.servers[n].Cluster()
			return !status.Replicated() || len(status.Members) != Replicas
		})
	})
}

// changeEverything changes the state until its log no longer contains what was there before, and returns the revision of
// desired.changed.
func changeEverything(t *testing.T, st *Store) (last uint64) {
	t.Helper()
	testkit.Eventually(t, "a value is deleted", func() bool { return st.Delete(t.Context(), "desired.deleted") == nil }) // the leader may be lost
	for i := range 300 {
		last = put(t, st, "desired.changed", fmt.Sprint(i))
	}
	return last
}

// checkEverything checks the result of changeEverything.
func checkEverything(t *testing.T, st *Store, last uint64) {
	t.Helper()
	if v, revision, err := read(t, st, "desired.changed"); err != nil || string(v) != "299" || revision != last {
		t.Errorf("got %q at %d, %v; want 299 at %d", v, revision, err, last)
	}
	if v, _, err := read(t, st, "desired.deleted"); err == nil {
		t.Errorf("a deleted value returned: %q", v)
	}
}
