// Command skyserve serves large language models across regions and clouds.
// One small file per verb; the rooms behind them decide everything.
package main

import "os"

func main() { os.Exit(run(os.Args[1:])) }
