package identity

import (
	"strings"
	"testing"
)

func TestNamesAreChecked(t *testing.T) {
	for _, tt := range []struct {
		service, id string
		want        string // part of the error; empty = valid
	}{
		{"chat", "us-east-1-0", ""},
		{"c", "A", ""},
		{strings.Repeat("c", 64), strings.Repeat("a", 128), ""},
		{strings.Repeat("c", 65), "a", "service must be"},
		{"", "a", "service must be"},
		{"chat-", "a", "service must be"},
		{"Chat", "a", "service must be"},
		{"chat\n", "a", "service must be"},
		{"chat", strings.Repeat("a", 129), "at most 128"},
		{"chat", "", "at most 128"},
		{"chat", ".a", "at most 128"},
		{"chat", "a/b", "at most 128"},
		{"chat", "a\n", "at most 128"},
	} {
		err := Name{Service: tt.service, Role: Replica, ID: tt.id}.Check()
		if (tt.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("service %q, id %q: got %v, want %q", tt.service, tt.id, err, tt.want)
		}
	}
}
