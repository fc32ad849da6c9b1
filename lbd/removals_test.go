package lbd

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// Removals that several balancers store at the same time are all kept.
func TestAnnouncedRemovalsAreKept(t *testing.T) {
	srv, err := store.Serve(t.Context(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	st, err := store.Connect(t.Context(), srv.URL(), "", store.ForService("chat"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var commands sync.WaitGroup
	for i := range 4 {
		commands.Go(func() {
			for j := range 3 {
				if err := (removalStore{st, "chat"}).AnnounceRemovals(t.Context(), []string{fmt.Sprintf("i-%d-%d", i, j)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	commands.Wait()
	text, _, err := st.Get(t.Context(), "removals.chat")
	var r telemetry.Removals
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	if now := time.Now(); len(r.Current(now)) != 12 || len(r.Current(now.Add(25*time.Hour))) != 0 {
		t.Errorf("got %v, after a day %v", r.Current(now), r.Current(now.Add(25*time.Hour)))
	}
}
