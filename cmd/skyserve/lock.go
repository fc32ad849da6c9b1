package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"skyserve/provision"
	"skyserve/provision/local"
)

// serviceLock is the lock of a service for one command. The command does not hold it while it waits for a person: see
// withoutLock.
type serviceLock struct {
	svc    local.Service
	unlock func() // nil while the lock is not held
}

// lockService waits until no other command changes a service, and locks it. It prints which one it waits for.
func lockService(ctx context.Context, svc local.Service, errOut io.Writer) (*serviceLock, error) {
	unlock, err := svc.LockWait(ctx, func(busy *local.BusyError) { fmt.Fprintf(errOut, "waiting: %v\n", busy) })
	if busy := new(local.BusyError); errors.As(err, &busy) {
		return nil, failed(err, "nothing was changed; run the command again when the other one has ended")
	}
	if err != nil {
		return nil, err
	}
	return &serviceLock{svc, unlock}, nil
}

// release releases the lock if it is held.
func (l *serviceLock) release() {
	if l.unlock != nil {
		l.unlock()
		l.unlock = nil
	}
}

// removeUnused deletes the directory of a service that was never deployed, unless another command is changing it.
func (l *serviceLock) removeUnused() {
	if l.unlock == nil {
		unlock, err := l.svc.Lock()
		if err != nil {
			return
		}
		l.unlock = unlock
	}
	l.svc.RemoveUnused()
}

// input returns the input of a command that holds the lock; its prompts do not hold it. list lists the service's objects.
func (l *serviceLock) input(ctx context.Context, in io.Reader, list func(context.Context) ([]provision.Object, error)) io.Reader {
	return &lockedInput{in, l, func() (string, error) { return storedState(ctx, l.svc, list) }, ctx}
}

// lockedInput is the input of a command that holds the lock of a service.
type lockedInput struct {
	io.Reader
	lock  *serviceLock
	state func() (string, error)
	ctx   context.Context
}

// IsTerminal reports whether a person can confirm.
func (in *lockedInput) IsTerminal() bool { return canPrompt(in.Reader) }

// withoutLock releases the lock, so that no other command waits for a person, and calls confirm. Then it locks again, and
// returns an error if the service has changed meanwhile: the person has confirmed something else.
func (in *lockedInput) withoutLock(confirm func() error) error {
	before, err := in.state()
	if err != nil {
		return err
	}
	in.lock.release()
	if err := confirm(); err != nil {
		return err
	}
	if in.lock.unlock, err = in.lock.svc.LockWait(in.ctx, nil); err != nil {
		return err
	}
	after, err := in.state()
	if err != nil {
		return err
	}
	if after != before {
		in.lock.removeUnused() // another command may have deleted the service, and the lock created its directory again
		return failed(fmt.Errorf("%s changed while the confirmation was pending; the confirmed change was not made", in.lock.svc.Name()), "run the command again")
	}
	return nil
}

// storedState identifies what a command reads of a service before it prompts for confirmation: the service's objects, and
// the files that commands store on this machine.
func storedState(ctx context.Context, svc local.Service, list func(context.Context) ([]provision.Object, error)) (string, error) {
	have, err := list(ctx)
	if err != nil {
		return "", err
	}
	var all []string
	for _, o := range have {
		all = append(all, fmt.Sprintf("%s %s %s", o.Region, o.ID, o.Handle))
	}
	slices.Sort(all)
	lock := filepath.Join(svc.Dir(), local.FileLock)
	for _, dir := range []string{svc.Dir(), identityOf(svc).Dir} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if !e.Type().IsRegular() || path == lock {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			all = append(all, fmt.Sprintf("%s %x", path, sha256.Sum256(text)))
		}
	}
	return fmt.Sprint(all), nil
}
