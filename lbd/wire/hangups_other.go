//go:build !linux

package wire

// hangupWatcher is empty on systems without a common way to watch many sockets for hang-ups. There
// net/http serves every connection.
type hangupWatcher struct{}

func watchHangups() (*hangupWatcher, error) { return nil, nil }

func (*hangupWatcher) watch(*session) error { return nil }
func (*hangupWatcher) unwatch(*session)     {}
func (*hangupWatcher) forget(*session)      {}
func (*hangupWatcher) run()                 {}
func (*hangupWatcher) close()               {}
