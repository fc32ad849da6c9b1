//go:build !linux

package wire

// hangupWatcher is empty where the system has no common way to watch many sockets for
// hang-ups. net/http then serves every connection.
type hangupWatcher struct{}

func watchHangups() (*hangupWatcher, error) { return nil, nil }

func (*hangupWatcher) watch(*session) error { return nil }
func (*hangupWatcher) unwatch(*session)     {}
func (*hangupWatcher) forget(*session)      {}
func (*hangupWatcher) run()                 {}
func (*hangupWatcher) close()               {}
