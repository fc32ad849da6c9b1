package lbd

import (
	"log/slog"
	"testing"

	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

func TestNewestReviewIsKept(t *testing.T) {
	changes := make(chan store.KeyChange)
	var r latest[telemetry.Review]
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.watchKey("review.chat", changes, slog.New(slog.DiscardHandler))
	}()
	if r.newest() != nil {
		t.Error("a review before the first")
	}
	changes <- store.KeyChange{Key: "review.chat", Value: []byte(`{"token":1}`)}
	changes <- store.KeyChange{Key: "review.talk", Value: []byte(`{"token":9}`)} // of another service
	changes <- store.KeyChange{Key: "review.chat", Value: []byte(`{"token":`)}   // cannot be parsed
	if got := r.newest(); got == nil || got.Token != 1 {
		t.Errorf("got %+v", got)
	}
	changes <- store.KeyChange{Key: "review.chat", Deleted: true}
	close(changes)
	<-done
	if got := r.newest(); got != nil {
		t.Errorf("got %+v after it was deleted", got)
	}
}
