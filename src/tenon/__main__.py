from tenon.cli import main

main()
