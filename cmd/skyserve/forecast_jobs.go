package main

import (
	"context"
	"runtime"
)

// inParallel runs n jobs on all cores, the last one first. It returns the error of the failed job
// with the lowest index, or the context's error as soon as that ends, without waiting for running
// jobs.
func inParallel(ctx context.Context, n int, work func(i int) error, shown *progress) error {
	type outcome struct {
		i   int
		err error
	}
	next := make(chan int, n)
	for i := n - 1; i >= 0; i-- {
		next <- i
	}
	close(next)
	done := make(chan outcome, n)
	for range min(n, runtime.GOMAXPROCS(0)) {
		go func() {
			for i := range next {
				if ctx.Err() != nil {
					return
				}
				done <- outcome{i, work(i)}
			}
		}()
	}
	shown.setProgress(0, n)
	failed := outcome{i: n}
	for count := 0; count < n; {
		select {
		case <-ctx.Done():
			shown.clear()
			return ctx.Err()
		case o := <-done:
			count++
			if o.err != nil && o.i < failed.i {
				failed = o
			}
			shown.setProgress(count, n)
		case <-shown.tick():
			shown.showProgress()
		}
	}
	shown.clear()
	return failed.err
}
