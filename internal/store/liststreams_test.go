package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// A stream whose leader does not respond is missing in a list of NATS, and the last stream of the list is in it twice. No
// backup is made of such a list.
func TestListWithoutLeaderOfStream(t *testing.T) {
	ns, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(ns.Shutdown)
	nc, err := nats.Connect("", nats.InProcessServer(ns))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	names := []string{"KV_skyserve_a_state", "KV_skyserve_chat_batches", "KV_skyserve_chat_state", "skyserve_chat_points", "skyserve_other_points"}
	for _, missing := range append([]string{""}, names[:4]...) { // without the last one, the list itself fails
		var subs []*nats.Subscription
		answer := func(subject, kind string, rows func(offset int) []any) {
			sub, err := nc.Subscribe(subject, func(m *nats.Msg) {
				var request struct {
					Offset int `json:"offset"`
				}
				if err := json.Unmarshal(m.Data, &request); err != nil {
					t.Error(err)
				}
				text, err := json.Marshal(map[string]any{
					"type": "io.nats.jetstream.api.v1." + kind, "total": len(names), "offset": request.Offset, "limit": 256, "streams": rows(request.Offset),
				})
				if err == nil {
					err = m.Respond(text)
				}
				if err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			subs = append(subs, sub)
		}
		answer("$JS.API.STREAM.NAMES", "stream_names_response", func(offset int) (rows []any) {
			for _, name := range names[offset:] {
				rows = append(rows, name)
			}
			return rows
		})
		answer("$JS.API.STREAM.LIST", "stream_list_response", func(offset int) (rows []any) {
			for _, name := range names[offset:] {
				if name != missing {
					rows = append(rows, map[string]any{"config": map[string]any{"name": name}})
				}
			}
			return rows
		})
		infos, err := namespaceStreams(t.Context(), nc, "skyserve_chat")
		ofService := missing != "" && missing != names[0]
		if ofService && (!errors.Is(err, ErrUnavailable) || !strings.HasPrefix(err.Error(), fmt.Sprintf("store unavailable: the leader of stream %s does not respond: ", missing))) {
			t.Errorf("without %s: got %v", missing, err)
		}
		if !ofService && (err != nil || len(infos) != 3) {
			t.Errorf("without %q: got %d streams, %v", missing, len(infos), err)
		}
		for _, sub := range subs {
			if err := sub.Unsubscribe(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
