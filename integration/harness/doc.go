// Package harness answers: how is a node treated badly, and did it keep its
// promises?
//
// It starts nodes as processes of the real binary on free ports (Node), kills,
// stops and continues them, cuts and flips their files (files.go), and judges
// what a stream holds afterwards against what was sent and confirmed (Ledger,
// the checks K1 to K6). It knows a node only from outside: its ports, its
// files and its ready line.
package harness
